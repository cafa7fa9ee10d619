"""Which kernels of linear take a product on a CUDA device, as the library's own limits and measured choices say."""

import pytest

torch = pytest.importorskip("torch", reason="the CUDA suite makes its arrays with torch")


def supported(kernel):
    """Return whether this device has what the kernel needs."""
    capability = torch.cuda.get_device_capability()
    if kernel in ("sm90_float_wgmma", "sm90_int8_mma", "sm90_int8_wgmma"):
        return capability == (9, 0)
    return capability >= (8, 0) or kernel in ("sm75_gemv", "sm75_int8_sliced", "simt")


def rounds(n, columns):
    """Return how often all multiprocessors work on tiles of so many of n columns."""
    return -(-n // columns) / torch.cuda.get_device_properties(0).multi_processor_count


def takes_tiles(m, n, k, g, bits, scheme, in_place=True):
    """Return whether sm90_int8_mma takes so many rows. See takes()."""
    short, symmetric, tiles = g in (32, 64, 128), scheme == "symmetric", rounds(n, 32)
    at_once = tiles_at_once(m, n, g, bits)
    if not short:
        fewest = 9 if k < 4096 or (k == 4096 and tiles > 4) else 5
        if 1 < tiles <= 2:
            fewest = 1
        elif tiles <= 1 and n * k >= 2**25:
            fewest = 2 if bits == 8 else 3
        return symmetric and 0 < k <= g and fewest <= m <= 128 and (m <= (16 if tiles <= 2 else 8) or at_once)
    if symmetric and m < (fewest_rows(n, k, g, bits) if k > 0 and k % 8 == 0 and in_place else 2):
        return False
    if at_once or m > 128:
        return m <= 128
    if tiles <= 1:
        return m <= 64 or g < 128 if not symmetric else bits == 4 or g < 128
    if g == 32 or tiles <= 2:
        broad = 16 < m <= 32 and symmetric and bits == 8 and g == 128
        return (m <= 64 and (not broad or broad_leaves_room(m, n, k))) or (g == 32 and not symmetric)
    low_tiles = (not symmetric and g == 64) or (bits == 4 and (not symmetric or tiles <= 3))
    return m <= (16 if low_tiles else 8)


def fewest_rows(n, k, g, bits):
    """Return from which number of rows on sm90_int8_mma takes symmetric weights in blocks that sm75_gemv takes too."""
    tiles, narrow = rounds(n, 32), rounds(2 * n, 32) <= 1
    if k > 4096:
        return 3 if tiles <= 1 else 2 if tiles <= 2 else 4
    if bits == 8 and g < 128:
        return 3 if 1 < tiles <= 2 else 4
    if bits == 8 and tiles <= 2 and not narrow:
        return 3
    if tiles <= 2 and not (g < 128 and narrow):
        return 4
    return 7 if g < 128 else 5 if tiles <= 4 else 9


def broad_leaves_room(m, n, k):
    """Return whether tiles of 64 columns leave multiprocessors to the kernel that quantizes the next product's rows."""
    blocks = -(-n // 64) + m * -(-k // 4096)
    return blocks <= torch.cuda.get_device_properties(0).multi_processor_count


def tiles_at_once(m, n, g, bits):
    """Return whether all multiprocessors together multiply so many rows in tiles of 32 columns."""
    rows = 32 if g == 128 and bits == 8 else 64
    return -(-n // 32) * -(-m // rows) <= torch.cuda.get_device_properties(0).multi_processor_count


def is_in_place(x):
    """Return whether sm75_gemv reads x where it is: neighboring values, rows at multiples of 16 bytes."""
    rows = [x.data_ptr(), *(stride * x.element_size() for stride in x.stride()[:-1])]
    return x.stride(-1) == 1 and all(place % 16 == 0 for place in rows)


def takes(kernel, compute, m, k, g, scheme, dtype=None, n=1, bits=4, in_place=True):
    """Return whether a kernel takes a product; dtype is x's, half precision if it is not given. See is_in_place()."""
    if not supported(kernel):
        return False
    if kernel == "sm90_float_wgmma":
        few = 8 if scheme == "symmetric" and rounds(n, 64) > 1 else 16
        return dtype != torch.float32 and m > few and k > 0 and (k <= g or g % 32 == 0)
    if kernel == "sm90_int8_mma":
        return takes_tiles(m, n, k, g, bits, scheme, in_place)
    if kernel in ("sm75_int8_sliced", "simt") or (kernel == "sm80_int8_mma" and g == 16):
        return True
    if kernel == "sm90_int8_wgmma":
        return k > 0 and (k <= g or g in (32, 64) or g % 128 == 0)
    if kernel == "sm75_gemv" and compute == "float":
        return m <= 8 and torch.cuda.get_device_capability() < (8, 0)
    if kernel == "sm75_gemv" and m > 16:
        return False
    if kernel == "sm75_gemv" and takes("sm90_int8_wgmma", compute, m, k, g, scheme):
        many = rounds(n, 32) > 1
        if compute == "int8_asym":
            faster = (k > g or many) if m > 8 else g == 32 < k and many
        elif k <= g:
            faster = m > 8 and (bits == 8 or many)
        else:
            faster = (
                bits == 8 or rounds(n, 32) > (1 if m > 8 else 2)
                if g > 128
                else m > 8 and not takes_tiles(m, n, k, g, bits, scheme)
            )
        if faster:
            return False
    return k <= g or g % 32 == 0

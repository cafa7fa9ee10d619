"""A look into DLPack capsules, to see whose memory is handed on."""

import ctypes

_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def data_address(producer):
    """Return the address of the data of an array with ``__dlpack__``."""
    capsule = producer.__dlpack__()  # owns what is read below
    return ctypes.c_void_p.from_address(_pointer_of(capsule, b"dltensor")).value


def with_device_type(capsule, device_type):
    """Return the capsule, saying that its data are on another kind of device."""
    # DLTensor: void* data, then int32 device_type.
    at = _pointer_of(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p)
    ctypes.c_int32.from_address(at).value = device_type
    return capsule

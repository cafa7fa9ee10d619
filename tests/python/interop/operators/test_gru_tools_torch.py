"""Reports, golden files and exports take torch's tensors."""

import numpy as np
import pytest
import torch

from qcore.gru import QuantGRU, verify_golden


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tools_take_tensors(dtype, tmp_path):
    torch.manual_seed(0)
    gru = torch.nn.GRU(5, 7, batch_first=True)
    x = torch.randn(3, 8, 5)
    q = QuantGRU.from_torch(gru, x)
    given = x.to(dtype).requires_grad_()
    report = q.report(given)
    expected = q.report(given.detach().float().numpy())
    assert report == expected and report.row("h").sqnr > 20
    q.golden(tmp_path / "golden", given)
    assert verify_golden(tmp_path / "golden").steps == 8
    q.export_c(tmp_path / "gru.h", x=given)
    codes = q.format("x").encode(given.detach().double().numpy()[0, 0])
    assert "{" + ", ".join(map(str, codes)) + "}" in (tmp_path / "gru_selftest.c").read_text()
    np.testing.assert_array_equal(report.states[1].shape, (8, 3, 7))

"""How an FP8 GEMM accumulates, fast and exactly: what the emulation, which accumulates in float32, leaves out."""

import pytest

torch = pytest.importorskip("torch")

from tests.gpu.products import quantiles, record  # noqa: E402 - after the skip

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9), reason="needs a GPU with FP8 GEMMs"
    ),
]


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "exact"])
@pytest.mark.parametrize("contraction", [512, 2048, 8192])
@pytest.mark.parametrize("values", ["normal", "positive"])
def test_accumulation_loses_at_most_a_2048th_of_the_magnitudes(values: str, contraction: int, fast: bool) -> None:
    """In a float32 product of E4M3 values, no rounding to BF16 in the way.

    Terms of both signs: all sums with promotion to float32, nearly all without it (fast). Terms of one sign add up what each
    addition truncates: two bits more with promotion; without it as much as a tenth of the sum, which is recorded only.
    """
    generator = torch.Generator("cuda").manual_seed(0)
    a, b = (torch.randn(1024, contraction, generator=generator, device="cuda") * 30 for _ in range(2))
    if values == "positive":
        a, b = a.abs(), b.abs()
    a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    one = torch.ones((), device="cuda")
    found = torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.float32, use_fast_accum=fast)
    exact, magnitudes = a.double() @ b.double().t(), a.double().abs() @ b.double().abs().t()
    loss = (found.double() - exact).abs() / magnitudes
    record(what=f"_scaled_mm, {values}", contraction=contraction, fast=fast, error_over_magnitudes=quantiles(loss))
    if values == "normal":
        beyond = float((loss > 2**-11).double().mean())
        assert beyond <= (1e-4 if fast else 0), f"{beyond:.2g} lose more than 2^-11, up to {float(loss.max()):.3g}"
    elif not fast:
        assert float(loss.max()) <= 1.25e-3, f"largest loss {float(loss.max()):.3g} of the sum of magnitudes"

"""Plain BF16: the baseline arm. Every linear layer stays as the model built it."""

from fp8migrate.records.schema import Conversion, LayerConversion
from fp8migrate.sizing.flops import flops_shares, gemm_sites
from fp8migrate.worker.models.llama import Llama


def describe(model: Llama) -> Conversion:
    """Nothing to convert; the record lists every GEMM site as BF16."""
    sites = gemm_sites(model.settings, model.sequence_length)
    shares = flops_shares(sites)
    layers = tuple(
        LayerConversion(
            name=site.name,
            shape=(site.out_features, site.in_features),
            flops_share=shares[site.name],
            reason="BF16 arm",
        )
        for site in sites
    )
    return Conversion(requested="bf16", effective="bf16", layers=layers, fp8_flops_share=0.0, quantized_tensors=0)

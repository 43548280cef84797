"""What a converted model says of each layer: the reason that the plan gives, and what has no GEMM."""

from fp8migrate.facts.recipes import KNOWN_BAD, CurrentRecipe
from fp8migrate.jobs import Precision
from fp8migrate.plan.schema import LlamaModel
from fp8migrate.worker.backends import convert
from fp8migrate.worker.backends.padded import PaddedLinear
from fp8migrate.worker.models.llama import Llama

MODEL = LlamaModel(num_layers=1, hidden_size=64, num_heads=4, num_kv_heads=2, ffn_hidden_size=170)
KEPT = (("layers.0.attention.key", "keep_smaller_than 4096: 32 × 64 weights"), ("layers.0.mlp.up", "advised: 3.1 dB"))


def test_every_layer_in_bf16_has_its_reason() -> None:
    precision = Precision(
        backend="emulated", recipe=CurrentRecipe(), keep_bf16=("head", "norms", "embeddings"), kept=KEPT, odd_shapes="keep"
    )
    conversion = convert(Llama(MODEL, 32, seed=1), precision, 128)
    reasons = {layer.name: layer.reason for layer in conversion.layers if not layer.converted}
    assert reasons == {
        **dict(KEPT),
        "layers.0.attention.products": "a product of activations: attention runs in BF16",
        "layers.0.mlp.gate": "out_features 170 is not a multiple of 16: pad it",
        "layers.0.mlp.down": "in_features 170 is not a multiple of 16: pad it",
        "lm_head": "keep_bf16: head",
    }
    assert conversion.unmatched_filters == ()
    assert [note.split()[0] for note in conversion.notes] == ["norms", "the"]


def test_a_stand_in_goes_where_the_padded_candidate_is() -> None:
    precision = Precision(backend="emulated", recipe=CurrentRecipe(), stand_in=KNOWN_BAD, kept=KEPT, odd_shapes="pad")
    model = Llama(MODEL, 32, seed=1)
    conversion = convert(model, precision, 128)
    low = {layer.name: layer.reason for layer in conversion.layers if layer.converted}
    assert set(low.values()) == {KNOWN_BAD.in_words}
    assert len(low) == 6
    padded = [name for name, layer in model.named_modules() if isinstance(layer, PaddedLinear)]
    assert padded == ["layers.0.mlp.gate", "layers.0.mlp.down"]

"""Odd parameters for each experiment's notebook: other sizes, one variant, bf16, and whatever else is small.

A notebook may have several sets. Each must give an answer.
"""

PARAMETERS = {
    "adam": [
        {"variant": "fused", "num_params": 3, "param_size": 100, "amsgrad": True},
        {"variant": ["single_tensor", "foreach"], "num_params": 2, "param_size": [64, 4096]},
    ],
    "attention": [
        {"variant": "sdpa", "seq_len": 64, "d_head": 8, "precision": "bf16"},
        {"variant": ["naive", "tiled"], "seq_len": [32, 48], "d_head": 16, "causal": False, "batch_size": 1},
        {"variant": "sdpa", "seq_len": 40, "num_heads": 3, "batch_size": 1, "precision": "bf16", "native": True},
    ],
    "attention_module": [
        {"d_model": 32, "context_length": 16, "num_heads": 2, "precision": "bf16", "compiled": False},
    ],
    "calibration": [{}],
    "ceilings": [
        {"operation": ["projection", "add"], "rows": 64, "columns": 1280},
        # products alone: memory has no roof
        {"operation": "matmul", "rows": 32, "columns": 48, "precision": "fp32"},
        # memory alone, without what its rates are compared with
        {"operation": "copy", "rows": 96, "columns": 130, "precision": "fp32"},
    ],
    "collectives": [{}],
    "kernels": [{"size": "tiny", "context_length": 16, "precision": "bf16", "compiled": False}],
    "ladder": [
        {"size": "tiny", "context_length": 16, "switches": "plain", "losses": False},
        {"size": "tiny", "context_length": 24, "switches": ["fused", "fused+bf16"], "losses": True},
    ],
    "memory": [{"size": "tiny", "context_length": 16, "precision": "bf16"}],
    "parallel": [
        {"size": "tiny", "context_length": 16, "variant": "fsdp", "precision": "bf16"},
        {"size": "tiny", "context_length": 24, "variant": "bucketed", "bucket_mib": [1, 4]},
        {"size": "tiny", "context_length": 16, "variant": "plain", "world": 1},
    ],
    "peers": [{"context_length": 16, "precision": "fp32"}],
    "precision": [{"subject": "toy", "precision": "bf16"}],
    "step": [{"size": "tiny", "context_length": 16, "batch_size": 1, "precision": "bf16", "mode": "forward"}],
    "warmup": [{"size": "tiny", "context_length": 16}],
}


def sets(names):
    """Return pairs of a notebook and a set of parameters, for `pytest.mark.parametrize`."""
    pairs = []
    for name in names:
        for parameters in PARAMETERS.get(name, [{}]):
            pairs.append((name, parameters))
    return pairs

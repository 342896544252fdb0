"""Writes goldens/recurrences.safetensors: inputs, outputs and last states of the oracle's recurrences over 70 tokens.

The names are those of include/kvcache/models/recurrence.h, as are the shapes; decays and time steps are what the
oracle's layers make of random projections.
"""

import common
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers.models.mamba.modeling_mamba import mamba_selective_scan
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan
from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

BATCH, TOKENS = 2, 70


def selective_scan(draw):
    channels, size = 6, 4
    x, time_steps = draw(BATCH, TOKENS, channels), F.softplus(draw(BATCH, TOKENS, channels))
    rates = -torch.exp(0.5 * draw(channels, size))
    inputs, outputs = draw(BATCH, TOKENS, size), draw(BATCH, TOKENS, size)
    output, state = mamba_selective_scan(
        x.transpose(1, 2),
        time_steps.transpose(1, 2),
        rates,
        inputs.transpose(1, 2),
        outputs.transpose(1, 2),
        return_last_state=True,
    )
    return {
        "x": x,
        "time_steps": time_steps,
        "rates": rates,
        "input_weights": inputs,
        "output_weights": outputs,
        "output": output.transpose(1, 2),
        "last": state,
    }


def duality(draw):
    heads, groups, value_dim, key_dim = 4, 2, 3, 5
    values, keys = draw(BATCH, TOKENS, heads, value_dim), draw(BATCH, TOKENS, groups, key_dim)
    queries, state = draw(BATCH, TOKENS, groups, key_dim), draw(BATCH, heads, value_dim, key_dim)
    time_steps, rates = F.softplus(draw(BATCH, TOKENS, heads)), -torch.exp(0.5 * draw(heads))
    output, last = mamba2_chunk_scan(
        values, time_steps, rates, keys, queries, chunk_size=16, initial_states=state, return_final_states=True
    )
    return {
        "queries": queries.transpose(1, 2),
        "keys": keys.transpose(1, 2),
        "values": (values * time_steps[..., None]).transpose(1, 2),
        "log_decay": (time_steps * rates).transpose(1, 2),
        "state": state,
        "output": output.transpose(1, 2),
        "last": last,
    }


def delta_rule(draw):
    heads, key_heads, value_dim, key_dim = 4, 2, 3, 5
    values, keys = draw(BATCH, TOKENS, heads, value_dim), F.normalize(draw(BATCH, TOKENS, key_heads, key_dim), dim=-1)
    queries, state = draw(BATCH, TOKENS, key_heads, key_dim), draw(BATCH, heads, key_dim, value_dim)
    log_decay, rates = -0.2 * F.softplus(draw(BATCH, TOKENS, heads)), draw(BATCH, TOKENS, heads).sigmoid()
    output, last = torch_recurrent_gated_delta_rule(
        queries, keys, values, g=log_decay, beta=rates, initial_state=state, output_final_state=True
    )
    return {
        "queries": (queries * key_dim**-0.5).transpose(1, 2),
        "keys": keys.transpose(1, 2),
        "values": values.transpose(1, 2),
        "log_decay": log_decay.transpose(1, 2),
        "learning_rates": rates.transpose(1, 2),
        "state": state.transpose(-1, -2),
        "output": output.transpose(1, 2),
        "last": last.transpose(-1, -2),
    }


if __name__ == "__main__":
    common.set_up()
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for make in (selective_scan, duality, delta_rule):
        made = make(lambda *shape: torch.randn(shape, generator=generator))
        tensors |= {f"{make.__name__}.{name}": tensor.contiguous() for name, tensor in made.items()}
    made_with = {key: str(value) for key, value in common.made_with(__file__).items()}
    save_file(tensors, common.GOLDENS / "recurrences.safetensors", metadata=made_with)

"""python -m bench.autoscale: scaling policies beside each other on the same traces."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import statistics
import sys
import time
from pathlib import Path

from bench.autoscale.cluster import Policy, simulate
from bench.autoscale.engine import Model, StepCost
from bench.autoscale.kvtide import KVTide
from bench.autoscale.report import Row, Target, beaten, plot, table
from bench.autoscale.rules import Behind, hpa_on_kv, keda_on_waiting, wva_saturation, wva_tokens
from bench.autoscale.traces import TRACES, Trace
from kvtide_sizing.memory.budget import STEP_TOKEN_BUDGET

# Llama-2-13B in BF16 on an A100 of 40 GB, by `kvtide plan --model llama-2-13b --device a100-40gb`: 268 blocks of 64
# tokens, 819,200 bytes a token, 26.0 GB of weights. The device reads 1,555 GB/s and computes 312 TFLOP/s; 80 % and
# 50 % of these are taken as reached.
#   base       26.0 GB / 1,244 GB/s         = 20.9 ms    weights are read once a step
#   prefill    2 · 13.02 G / 156 TFLOP/s    = 0.167 ms   a token
#   sequence                                  0.05 ms    sampling and bookkeeping, assumed
#   KV         819,200 B / 1,244 GB/s       = 0.66 µs    a token that a decode reads
# Attention of prefill, quadratic in the prompt, is left out.
A100 = Model(
    block_size=64,
    num_blocks=268,
    step_tokens=STEP_TOKEN_BUDGET,
    max_batch_limit=21,
    max_context_tokens=4096,
    cost=StepCost(base_s=20.9e-3, prefill_token_s=0.167e-3, sequence_s=0.05e-3, kv_token_s=0.66e-6),
    start_up_s=60.0,
)
TARGET = Target(time_to_first_token_s=2.0, time_per_output_token_s=0.1)
BOUNDS = (1, 8)
OURS = "KVTide"
POLICIES = (OURS, "KVTide, memory alone", "HPA on KV 80 %", "KEDA on waiting 5", "WVA saturation", "WVA tokens")

EPILOG = """
every policy gets the same requests, workers, start-up time, drain and victims; one replica to begin with, 1 to 8

  KVTide                the operator's own pass, with autoscaling.slo at the targets above
  KVTide, memory alone  the same without autoscaling.slo
  HPA on KV 80 %        HorizontalPodAutoscaler on the mean of the KV cache's usage, with its defaults
  KEDA on waiting 5     KEDA on the number of waiting requests, 5 a replica
  WVA saturation        llm-d's workload-variant-autoscaler, saturation of KV and queue
  WVA tokens            the same project's rule of token capacity

in target: requests whose first token and whose mean time per token kept the targets. replica-hours: from the moment a
replica is asked for until it is gone, its start and its drain included. Seeds are fixed: a run says the same again.
held out: no rule was changed for that trace.

examples
  python -m bench.autoscale                                all of it: some minutes on one core
  python -m bench.autoscale --traces ramp bursts           two traces
  python -m bench.autoscale --scale 0.2                    the same traces in a fifth of their time, for a first look
  python -m bench.autoscale --plot docs/benchmarks/autoscale.svg
"""


def policies(names: list[str], trace: Trace) -> list[Policy]:
    """The policies of these names, told what a user would tell them of the trace: its mean lengths."""
    lengths, (fewest, most) = trace.lengths, BOUNDS
    targets = {
        "timeToFirstTokenSeconds": TARGET.time_to_first_token_s,
        "timePerOutputTokenSeconds": TARGET.time_per_output_token_s,
    }
    bounds = {"minReplicas": fewest, "maxReplicas": most}
    output = round(lengths.output[1])
    made: dict[str, Policy] = {
        OURS: KVTide(OURS, {**bounds, "slo": targets}, output),
        "KVTide, memory alone": KVTide("KVTide, memory alone", dict(bounds), output),
        "HPA on KV 80 %": Behind("HPA on KV 80 %", hpa_on_kv(0.80), BOUNDS),
        "KEDA on waiting 5": Behind("KEDA on waiting 5", keda_on_waiting(5), BOUNDS),
        "WVA saturation": Behind("WVA saturation", wva_saturation(), BOUNDS),
        "WVA tokens": Behind("WVA tokens", wva_tokens(round(lengths.prompt[1])), BOUNDS),
    }
    return [made[name] for name in names]


def run(traces: list[Trace], names: list[str], scale: float, seeds: int) -> list[Row]:
    """Every policy on every trace, the mean over so many seeds of arrivals, lengths and routing."""
    rows = []
    for trace in traces:
        for name in names:
            begun, runs = time.monotonic(), []
            for seed in range(seeds):
                seeded = dataclasses.replace(trace, seed=trace.seed + 1000 * seed)
                (policy,) = policies([name], seeded)
                jobs = seeded.jobs(A100.max_context_tokens, scale)
                ran = simulate(jobs, policy, A100, trace.duration_s * scale, seed=seeded.seed)
                runs.append(Row.of(trace.name, name, ran, TARGET))
            rows.append(Row.mean(runs))
            print(f"{trace.name}, {name}: {time.monotonic() - begun:.1f} s", file=sys.stderr)
    return rows


def main() -> None:
    """The command."""
    about = "\n".join(f"  {trace.name:10} {'held out: ' if trace.held_out else ''}{trace.about}" for trace in TRACES)
    parser = argparse.ArgumentParser(
        prog="python -m bench.autoscale",
        description="Scaling policies on simulated workers (the real scheduler and block manager; Llama-2-13B on an"
        f" A100 of 40 GB), targets {TARGET.time_to_first_token_s:g} s to the first token and"
        f" {TARGET.time_per_output_token_s:g} s a token.",
        epilog=f"traces\n{about}\n{EPILOG}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--traces", nargs="+", choices=[trace.name for trace in TRACES], help="default: all")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, metavar="NAME", help="default: all, as named below")
    parser.add_argument("--scale", type=float, default=1.0, help="of the traces' durations (default 1)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of which the means are shown (default 3)")
    parser.add_argument("--plot", type=Path, help="write a plot here: .svg or .png")
    parser.add_argument("--json", type=Path, help="write the rows here")
    arguments = parser.parse_args()
    logging.getLogger("kvtide_worker").setLevel(logging.ERROR)
    chosen = [trace for trace in TRACES if arguments.traces is None or trace.name in arguments.traces]
    rows = run(chosen, list(arguments.policies or POLICIES), arguments.scale, arguments.seeds)
    print(table(rows))
    own = [row for row in rows if row.policy == OURS]
    for row, other in beaten(rows, OURS):
        print(f"\n{row.trace}: {other.policy} has more requests in target for fewer replica-hours than {OURS}")
    if own:
        print(f"\n{OURS}: {100 * statistics.mean(row.in_target for row in own):.1f} % in target over all traces,"
              f" {sum(row.replica_hours for row in own):.1f} replica-hours")  # fmt: skip
    if arguments.json:
        arguments.json.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1) + "\n")
    if arguments.plot:
        plot(rows, arguments.plot)


if __name__ == "__main__":
    main()

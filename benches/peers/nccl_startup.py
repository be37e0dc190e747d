"""Time from the start to the end of NCCL's first all-reduce, to compare with `aqueduct perf startup` in the same run.

    torchrun --nproc-per-node 4 benches/peers/nccl_startup.py [--against STARTUP.json]

CUDA's own initialisation comes first and is not counted. Prints milliseconds by phase, of the rank that came last, and with
--against the ratio of aqueduct's time (written by `aqueduct perf startup -J`) to NCCL's. The goal, at most 0.5, is reported and
not enforced: each side is a single cold start. NVLink multicast stays off, as in aqueduct. Needs PyTorch with NCCL;
ci/hardware.sh starts it where there is torchrun.
"""

import argparse
import json
import os
import time

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import torch
import torch.distributed as dist


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--against", help="what aqueduct perf startup -J wrote")
    arguments = parser.parse_args()

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # The context, PyTorch's allocator and its first kernel.
    data = torch.ones(256, device="cuda")
    torch.cuda.synchronize()

    marks = [time.perf_counter()]
    dist.init_process_group("nccl")
    marks.append(time.perf_counter())
    dist.all_reduce(data)
    torch.cuda.synchronize()
    marks.append(time.perf_counter())
    assert data.eq(dist.get_world_size()).all().item(), "a wrong sum"

    # All ranks end together. The rank that started last did not wait for others, so its times exclude their CUDA start.
    mine = torch.tensor([marks[1] - marks[0], marks[2] - marks[1], marks[2] - marks[0]], device="cuda", dtype=torch.float64)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    group, first, total = min(([second * 1e3 for second in row.tolist()] for row in everyone), key=lambda row: row[2])
    if rank == 0:
        version = ".".join(map(str, torch.cuda.nccl.version()))
        print(f"# NCCL {version}, {dist.get_world_size()} ranks, without CUDA's initialisation, the rank that started last, ms")
        print(f"{'init_process_group':>24} {group:>10.1f}")
        print(f"{'first all_reduce':>24} {first:>10.1f}")
        print(f"{'all':>24} {total:>10.1f}")
        if arguments.against:
            with open(arguments.against) as file:
                lines = [json.loads(line) for line in file]
            if len(lines[0]["ranks"]) != dist.get_world_size():
                raise SystemExit("the two were not measured with the same number of ranks")
            ours = next(line["time_p50_us"] for line in lines if line.get("phase") == "all without CUDA's own") / 1e3
            verdict = "goal of 0.5 met" if ours <= 0.5 * total else "goal of 0.5 MISSED, which is reported and not enforced"
            print(f"# aqueduct {ours:.1f} ms / NCCL {total:.1f} ms = {ours / total:.3f}: {verdict}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""NCCL's all-reduce by graph replay, to compare with `aqueduct perf all-reduce -G 20` in the same run.

    python3 benches/peers/nccl_all_reduce.py [GPUS]

Prints microseconds per call: the median over 20 replays of a graph of 20 calls, the slowest rank's. In place, f32, sum.
Needs PyTorch with NCCL; started by hand only. NVLink multicast stays off, as in aqueduct.
"""

import os
import statistics
import sys

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SIZES = [1 << shift for shift in range(10, 29, 2)]
CALLS, REPLAYS = 20, 20


def rank_main(rank: int, ranks: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29611")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=ranks)
    if rank == 0:
        print(f"# NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}, {ranks} GPUs, us per all-reduce", flush=True)
    for size in SIZES:
        data = torch.ones(size // 4, device="cuda")
        for _ in range(5):
            dist.all_reduce(data)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(CALLS):
                dist.all_reduce(data)
        times = []
        for _ in range(REPLAYS):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            slowest = torch.tensor([start.elapsed_time(end) * 1e3 / CALLS], device="cuda")
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            times.append(slowest.item())
        if rank == 0:
            print(f"{size:>12} {statistics.median(times):>10.2f}", flush=True)
        del graph
    torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    gpus = int(sys.argv[1]) if len(sys.argv) > 1 else torch.cuda.device_count()
    mp.spawn(rank_main, args=(gpus,), nprocs=gpus)

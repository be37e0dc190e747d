"""PyTorch symmetric memory's all-reduces by graph replay, to compare with `aqueduct bench all-reduce -G 20` in the same run.

    python3 benches/peers/torch_symmetric.py

Prints microseconds per call on two GPUs: the median over 20 replays of a graph of 20 calls, the slower rank's. bfloat16, because
the operations know no half; sum; the two-shot one in place. Multicast stays off. Needs PyTorch; started by hand only.
"""

import os
import statistics

os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm
import torch.multiprocessing as mp

SIZES = [1 << shift for shift in range(10, 31, 2)]
CALLS, REPLAYS = 20, 20


def measure(call) -> float:
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    times = []
    for _ in range(REPLAYS):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / CALLS)
    mine = torch.tensor([statistics.median(times)], device="cuda")
    dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    return mine.item()


def rank_main(rank: int, ranks: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29613")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=ranks, device_id=torch.device("cuda", rank))
    group = dist.group.WORLD.group_name
    if rank == 0:
        print(f"# PyTorch {torch.__version__} symmetric memory, us per all-reduce")
        print(f"# {'bytes':>10} {'one-shot':>10} {'two-shot':>10}", flush=True)
    for size in SIZES:
        data = symm.empty(size // 2, dtype=torch.bfloat16, device="cuda")
        symm.rendezvous(data, group=group)
        data.zero_()
        row = []
        for name in ["one_shot_all_reduce", "two_shot_all_reduce_"]:
            if name == "one_shot_all_reduce" and size > 64 << 20:
                row.append(float("nan"))
                continue
            op = getattr(torch.ops.symm_mem, name)
            row.append(measure(lambda: op(data, "sum", group)))
        if rank == 0:
            print(f"  {size:>10} {row[0]:>10.2f} {row[1]:>10.2f}", flush=True)
        del data
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(rank_main, args=(2,), nprocs=2)

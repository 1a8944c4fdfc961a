"""Measures the training iteration of a torchvision network in PyTorch with DistributedDataParallel over gloo:
the median milliseconds of --steps iterations.

    torchrun --nproc-per-node 2 benchmark-workers-peer.py resnet18 --batch 32 --threads 1 [--bf16]
"""
import argparse
import statistics
import time

import torch
import torch.distributed as dist
import torchvision


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("network")
    parser.add_argument("--batch", type=int, default=32, help="of all processes")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--bf16", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    dist.init_process_group("gloo")
    workers = dist.get_world_size()
    torch.manual_seed(1)
    model = torchvision.models.get_model(arguments.network).to(memory_format=torch.channels_last).train()
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    loss_of = torch.nn.CrossEntropyLoss()
    own = arguments.batch // workers
    images = torch.rand(own, 3, arguments.size, arguments.size).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (own,))
    times = []
    for step in range(arguments.steps + 2):
        dist.barrier()
        begun = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=arguments.bf16):
            loss = loss_of(model(images), labels)
        loss.backward()
        optimiser.step()
        dist.barrier()
        if step >= 2:
            times.append(time.perf_counter() - begun)
    if dist.get_rank() == 0:
        print(f"pytorch {arguments.network} {workers} workers: {1000 * statistics.median(times):.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

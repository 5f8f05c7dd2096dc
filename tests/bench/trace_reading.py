#!/usr/bin/python3
"""How fast `taskd diagnose --from` reads what other tools wrote, and how much memory that takes, beside Python's json.

tests/bench/trace_reading.py [--mib 200] [--runs 3] [--taskd PATH]

One file of each kind, of events as they are in traces of GPU jobs, read by one thread in turn with Python's json.load (gzip.open for
gzip): the least CPU time of the runs counts. MB are of what is read unpacked. The files are deleted.
"""
import argparse
import gzip
import os
import random
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
OPERATORS = ["aten::mm", "aten::linear", "aten::native_layer_norm", "autograd::engine::evaluate_function: AddmmBackward0"]
KERNELS = ["void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, at::detail::Array<char*, 3> >"
           "(int, at::native::CUDAFunctor_add<c10::BFloat16>, at::detail::Array<char*, 3>)",
           "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_nn",
           "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"]
BASE_US = 1_767_225_600_000_000
PYTHON = "import gzip, json, sys; json.load((gzip.open if sys.argv[1].endswith('.gz') else open)(sys.argv[1]))"


def kineto_step(step, begin, random_):
    """Text of one step's events, and its end; us."""
    lines, now = [], begin
    for i in range(2000):
        now += random_.random() * 20
        start = f"{BASE_US + now:.3f}"
        lines.append(f'''  {{
    "ph": "X", "cat": "cpu_op", "name": "{random_.choice(OPERATORS)}", "pid": 4000, "tid": 4000,
    "ts": {start}, "dur": {random_.random() * 10:.3f},
    "args": {{
      "External id": {i},"Record function id": 0, "Sequence number": {i}, "Fwd thread id": 0, "Ev Idx": {i}
    }}
  }},
  {{
    "ph": "X", "cat": "kernel", "name": "{random_.choice(KERNELS)}", "pid": 0, "tid": 7,
    "ts": {start}, "dur": {random_.random() * 15:.3f},
    "args": {{
      "External id": {i},"queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": {i}, "registers per thread": 32,
      "shared memory": 0, "blocks per SM": {random_.random() * 9:.4f}, "warps per SM": {random_.random() * 32:.4f},
      "grid": [{random_.randrange(1000)}, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 100
    }}
  }},
  {{
    "ph": "s", "id": {i}, "pid": 4000, "tid": 4000, "ts": {start},
    "cat": "ac2g", "name": "ac2g"
  }},
''')
    lines.append(f'{{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{step}", "pid": 4000, "tid": 4000, '
                 f'"ts": {BASE_US + begin:.3f}, "dur": {now - begin:.3f}}},\n')
    return "".join(lines), now


def write_kineto(path, size):
    random_, now, step, written = random.Random(1), 0.0, 0, 0
    with open(path, "w") as file:
        file.write('{"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1}, "traceEvents": [\n')
        while written < size:
            text, now = kineto_step(step, now, random_)
            step += 1
            written += file.write(text)
        file.write('{"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "args": {}}]}\n')


def write_ascend(path, size):
    step = 0
    with open(path, "w") as file:
        file.write("{")
        while file.tell() < size:
            ops = []
            for i in range(200):
                transports = ", ".join(f'"{name}": {{"Transit Size(MB)": 64.5, "Transit Time(ms)": 4.25, "Bandwidth(GB/s)": 15.1765, '
                                       '"Large Packet Ratio": 1.0, "Size Distribution": {"4.0": [16, 4.25]}}'
                                       for name in ("RDMA", "HCCS", "PCIE", "SDMA", "SIO"))
                ops.append(f'"hcom_allReduce__844_{step * 200 + i}_1@13681369207305868844": {{"Communication Time Info": '
                           f'{{"Start Timestamp(us)": {BASE_US + (step * 200 + i) * 1000}.125, "Elapse Time(ms)": 0.75, '
                           '"Transit Time(ms)": 0.5, "Wait Time(ms)": 0.25, "Synchronization Time(ms)": 0.125, "Idle Time(ms)": 0.0, '
                           f'"Wait Time Ratio": 0.3333, "Synchronization Time Ratio": 0.2}}, "Communication Bandwidth Info": {{{transports}}}}}')
            file.write(f'{", " if step else ""}"step{step}": {{"p2p": {{}}, "collective": {{{", ".join(ops)}}}}}')
            step += 1
        file.write("}")


def measure(argv):
    """CPU s, peak MiB"""
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{argv}: exit code {process.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--taskd", default=os.path.join(HERE, "../../build/release/bin/taskd"))
    options = parser.parse_args()
    print(f"{'':24}{'MB/s a core':>12}{'peak MiB':>10}{'json MB/s':>11}{'peak MiB':>10}{'ratio':>7}")
    with tempfile.TemporaryDirectory() as folder:
        kineto, ascend = (os.path.join(folder, name) for name in ("rank0.json", "rank1.json"))
        write_kineto(kineto, options.mib << 20)
        write_ascend(ascend, options.mib << 20)
        with open(kineto, "rb") as plain, gzip.open(kineto + ".gz", "wb", 6) as packed:
            while block := plain.read(1 << 20):
                packed.write(block)
        for name, path, of in (("Kineto", kineto, kineto), ("Kineto, gzip", kineto + ".gz", kineto), ("communication.json", ascend, ascend)):
            megabytes = os.path.getsize(of) / 1e6
            ours = [measure([options.taskd, "diagnose", "--json", "--from", path]) for _ in range(options.runs)]
            theirs = [measure([sys.executable, "-c", PYTHON, path]) for _ in range(options.runs)]
            (cpu, peak), (json_cpu, json_peak) = min(ours), min(theirs)
            print(f"{name:24}{megabytes / cpu:12.0f}{peak:10.0f}{megabytes / json_cpu:11.0f}{json_peak:10.0f}{json_cpu / cpu:7.2f}")


if __name__ == "__main__":
    main()

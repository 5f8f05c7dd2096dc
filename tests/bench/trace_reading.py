#!/usr/bin/python3
"""How fast `taskd diagnose --from` reads what other tools wrote, and how much memory that takes, beside Python's own readers.

tests/bench/trace_reading.py [--gib 1] [--peer-mib 100] [--runs 3] [--taskd PATH] [--only NAME]

--gib of files in all, of contents as they are in jobs on GPUs and NPUs, the same amount of each format; written one after the other, read
once and deleted. Then one file of --peer-mib, or dumps of that size, are read in turn with Python: json.load (as Holistic Trace Analysis does; with a
pandas DataFrame of the events where there is pandas) or pickle.load. Of these the least CPU time of the runs counts. MB are of what is read, unpacked.
"""
import argparse
import gzip
import json
import os
import pickle
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
FIRST_SECOND = 1_767_225_600
SECOND, STEP = "@second@@@", "@step@"  # what differs from one second of a file to the next
MIB = 1 << 20

# From a process that is small itself: a child's peak begins with that of who has started it.
MEASURE = """import os, sys
pid = os.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
_, status, usage = os.wait4(pid, 0)
print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss, file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))
"""
OPEN = "import gzip, json, os, pickle, sys\nwith (gzip.open if sys.argv[1].endswith('.gz') else open)(sys.argv[1]) as file: "
EVENTS = OPEN + """events = json.load(file)['traceEvents']
try:
    import pandas
    pandas.DataFrame(events)
except ImportError:
    pass"""
WHOLE = OPEN + "json.load(file)"
LINES = OPEN + "[json.loads(line) for line in file]"
ANSWERS = OPEN + """text = file.read()
decoder, at = json.JSONDecoder(), 0
while at < len(text):
    _, at = decoder.raw_decode(text, at)
    at += 1"""
DUMPS = "import json, os, pickle, sys\nfor path in os.scandir(sys.argv[1]):\n    with open(path, 'rb') as file: "


def kineto(random_):
    """Events of a second, which is a step."""
    lines = []
    for i in range(2000):
        now = f"{SECOND}{i * 499:06d}.{random_.randrange(1000):03d}"
        lines.append(f'''  {{
    "ph": "X", "cat": "cpu_op", "name": "{random_.choice(OPERATORS)}", "pid": 4000, "tid": 4000,
    "ts": {now}, "dur": {random_.random() * 10:.3f},
    "args": {{
      "External id": {i},"Record function id": 0, "Sequence number": {i}, "Fwd thread id": 0, "Ev Idx": {i}
    }}
  }},
  {{
    "ph": "X", "cat": "kernel", "name": "{random_.choice(KERNELS)}", "pid": 0, "tid": 7,
    "ts": {now}, "dur": {random_.random() * 15:.3f},
    "args": {{
      "External id": {i},"queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": {i}, "registers per thread": 32,
      "shared memory": 0, "blocks per SM": {random_.random() * 9:.4f}, "warps per SM": {random_.random() * 32:.4f},
      "grid": [{random_.randrange(1000)}, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 100
    }}
  }},
  {{
    "ph": "s", "id": {i}, "pid": 4000, "tid": 4000, "ts": {now},
    "cat": "ac2g", "name": "ac2g"
  }},
''')
    lines.append(f'{{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{STEP}", "pid": 4000, "tid": 4000, '
                 f'"ts": {SECOND}000000.000, "dur": 999999.000}},\n')
    return ('{"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1}, "traceEvents": [\n', "".join(lines),
            '{"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "args": {}}]}\n')


def ascend(_):
    ops = []
    for i in range(200):
        transports = ", ".join(f'"{name}": {{"Transit Size(MB)": 64.5, "Transit Time(ms)": 4.25, "Bandwidth(GB/s)": 15.1765, '
                               '"Large Packet Ratio": 1.0, "Size Distribution": {"4.0": [16, 4.25]}}'
                               for name in ("RDMA", "HCCS", "PCIE", "SDMA", "SIO"))
        ops.append(f'"hcom_allReduce__844_{i}_1@13681369207305868844": {{"Communication Time Info": '
                   f'{{"Start Timestamp(us)": {SECOND}{i * 5000:06d}.125, "Elapse Time(ms)": 0.75, '
                   '"Transit Time(ms)": 0.5, "Wait Time(ms)": 0.25, "Synchronization Time(ms)": 0.125, "Idle Time(ms)": 0.0, '
                   f'"Wait Time Ratio": 0.3333, "Synchronization Time Ratio": 0.2}}, "Communication Bandwidth Info": {{{transports}}}}}')
    return "{", f'"step{STEP}": {{"p2p": {{}}, "collective": {{{", ".join(ops)}}}}},\n', '"step0": {}}'


def inspector(random_):
    lines = []
    for i in range(1000):
        lines.append(json.dumps({
            "header": {"id": "0x7f8c496ae9f661", "rank": 0, "n_ranks": 8, "nnodes": 1},
            "metadata": {"inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "nccl_profiler_interface",
                         "dump_timestamp_us": 123456, "hostname": "node-0", "pid": 4000},
            "coll_perf": {"coll": "AllReduce", "coll_sn": 123457, "coll_msg_size_bytes": 64 * MIB, "coll_exec_time_us": random_.randrange(2000, 3000),
                          "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 30.5, "coll_busbw_gbs": 53.25}}
        ).replace("123456", f"{SECOND}{i * 1000:06d}").replace("123457", f"{STEP}{i:03d}"))
    return "", "\n".join(lines) + "\n", ""


def ras(_):
    ranks = [{"rank": rank, "host": f"10.0.0.{1 + rank // 8}", "pid": 4000 + rank, "cuda_dev": rank % 8, "nvml_dev": rank % 8,
              "status": {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False},
              "collective_counts": {"Broadcast": 0, "Reduce": 0, "AllGather": 3, "ReduceScatter": 0, "AllReduce": 700000 + rank}}
             for rank in range(1024)]
    answer = {"nccl_version": "2.29.1", "timestamp": "2026-06-19 06:51:56", "communicators_count": 1, "communicators": [
        {"hash": "0x5111", "secondary_hash": "0x2cd6:0xe685", "size": 1024, "ranks_count": 1024, "missing_ranks_count": 0, "ranks": ranks,
         "missing_ranks": []}], "ras": {"collection_time_sec": 0.125, "timeouts_count": 0}}
    return "", json.dumps(answer, indent=2).replace("2026-06-19 06:51:56", SECOND) + "\n", ""


def dump():
    entries = [{
        "record_id": i, "op_id": i + 1, "pg_id": i % 4, "process_group": (str(i % 4), "default_pg" if i % 4 == 0 else "tp"),
        "collective_seq_id": i // 4, "p2p_seq_id": 0, "time_created_ns": FIRST_SECOND * 10**9 + i * 10**6, "timeout_ms": 600000, "is_p2p": False,
        "retired": i < 1996, "time_discovered_started_ns": FIRST_SECOND * 10**9 + i * 10**6, "time_discovered_completed_ns": None,
        "profiling_name": "nccl:all_reduce", "state": "completed" if i < 1996 else "started", "input_sizes": [[4096, 1024 + i % 7]],
        "input_dtypes": ["BFloat16"], "output_sizes": [[4096, 1024 + i % 7]], "output_dtypes": ["BFloat16"],
        "frames": [{"name": name, "filename": f"/opt/venv/lib/python3.11/site-packages/torch/{name}.py", "line": 40 + line + i % 50}
                   for line, name in enumerate(("all_reduce", "wrapper", "backward", "step", "train", "main"))]} for i in range(2000)]
    config = {str(group): {"name": str(group), "desc": "tp", "ranks": str(list(range(group, 1024, 8)))} for group in range(1, 4)}
    config["0"] = {"name": "0", "desc": "default_pg", "ranks": str(list(range(1024)))}
    return {"version": "2.10", "pg_config": config, "entries": entries}


def write_file(path, size, parts):
    """Seconds of one kind of second. Returns the bytes, unpacked."""
    begin, second, end = (part.encode() for part in parts)
    with (gzip.open(path, "wb", 6) if path.endswith(".gz") else open(path, "wb")) as file:
        written, number = file.write(begin), 1
        while written < size:
            written += file.write(second.replace(SECOND.encode(), b"%d" % (FIRST_SECOND + number)).replace(STEP.encode(), b"%d" % number))
            number += 1
        return written + file.write(end)


def write_dumps(folder, size, data):
    """The same one for every rank, which only its name says."""
    os.mkdir(folder)
    first = os.path.join(folder, "nccl_trace_rank_0")
    with open(first, "wb") as file:
        file.write(data)
    count = max(1, round(size / len(data)))
    for rank in range(1, count):
        os.link(first, os.path.join(folder, f"nccl_trace_rank_{rank}"))
    return count * len(data)


def measure(argv):
    """CPU s, peak MiB"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", MEASURE, *argv], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"{argv}: exit code {done.returncode}: {done.stderr}")
    seconds, kib = done.stderr.split()[-2:]
    return float(seconds), int(kib) / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=1)
    parser.add_argument("--peer-mib", type=int, default=100)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--taskd", default=os.path.join(HERE, "../../build/release/bin/taskd"))
    parser.add_argument("--only", default="", help="formats whose name has this")
    options = parser.parse_args()
    files = {"Kineto": ("rank0.json", kineto, EVENTS), "Kineto, gzip": ("rank0.json.gz", kineto, EVENTS),
             "communication.json": ("rank0.json", ascend, WHOLE), "NCCL Inspector": ("node-pid4000.log", inspector, LINES),
             "NCCL RAS": ("ras.json", ras, ANSWERS)}
    dumps = {"dumps, pickle": (lambda: pickle.dumps(dump(), protocol=2), DUMPS + "pickle.load(file)"),
             "dumps, JSON": (lambda: json.dumps(dump()).encode(), DUMPS + "json.load(file)")}
    share = options.gib * 1024 * MIB / (len(files) + len(dumps))
    print(f"{'':20}{'GB':>6}{'MB/s a core':>12}{'peak MiB':>10}{'Python MB/s':>13}{'peak MiB':>10}{'ratio':>7}")
    for name in [name for name in (*files, *dumps) if options.only in name]:
        row = []
        for size, is_peer in ((share, False), (options.peer_mib * MIB, True)):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, files[name][0] if name in files else "dumps")
                megabytes = (write_file(path, size, files[name][1](random.Random(1))) if name in files else
                             write_dumps(path, size, dumps[name][0]())) / 1e6
                ours = min(measure([options.taskd, "diagnose", "--json", "--from", path]) for _ in range(options.runs if is_peer else 1))
                if not is_peer:
                    row = [megabytes, ours]
                    continue
                code = files[name][2] if name in files else dumps[name][1]
                theirs = min(measure([sys.executable, "-c", code, path]) for _ in range(options.runs))
                print(f"{name:20}{row[0] / 1e3:6.2f}{row[0] / row[1][0]:12.0f}{row[1][1]:10.0f}{megabytes / theirs[0]:13.0f}{theirs[1]:10.0f}"
                      f"{theirs[0] / ours[0]:7.2f}", flush=True)


if __name__ == "__main__":
    main()

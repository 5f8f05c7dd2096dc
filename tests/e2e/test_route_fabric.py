"""A planned rank order on a real network: gloo's ring all-reduce over eight machines on four ToRs with narrow uplinks."""
import fabric
import pytest
from namespaces import make_rig  # noqa: F401

pytestmark = pytest.mark.root("network namespaces")
ELEMENTS = 2 * 1024 * 1024
ITERATIONS = 3


def flows(sent):
    """Ring flows that each uplink carried, up and down."""
    flow = fabric.one_flow_bytes(ELEMENTS, ITERATIONS)
    return [round(direction / flow, 3) for tor in sent for direction in tor]


def test_planned_order_sends_one_flow_over_each_uplink(make_rig, tmp_path, capsys):  # noqa: F811
    planned, report = fabric.plan(str(tmp_path))
    assert report["status"] == "planned"
    assert report["cost"]["before"]["max_link_flows"] == 2
    assert report["cost"]["after"]["max_link_flows"] == 1
    assert planned[0] == 0, "the old rank 0 keeps its rank"

    rig = make_rig(fabric.names(), tors=fabric.NODE_TORS, rate="200mbit")
    job = fabric.Job(rig, [fabric.INTERLEAVED, planned], ELEMENTS, ITERATIONS)
    before, before_s = job.round()
    after, after_s = job.round()
    assert all(process.wait() == 0 for process in job.processes)
    with capsys.disabled():
        print(f"\ninterleaved order: best {min(before_s):.3f} s, flows of each uplink {flows(before)}"
              f"\nplanned order:     best {min(after_s):.3f} s, flows of each uplink {flows(after)}"
              f"\ntime interleaved / planned: {min(before_s) / min(after_s):.2f}")
    # Exactly as many as `taskd route` predicted, on every uplink, either way.
    assert flows(before) == pytest.approx([2] * 2 * fabric.TORS, rel=0.1)
    assert flows(after) == pytest.approx([1] * 2 * fabric.TORS, rel=0.1)

"""The Perfetto export, parsed with Perfetto's published schema and rebuilt slice by slice."""

from __future__ import annotations

import io
from collections import defaultdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from traces import kernel, launch, phase, rank_trace, trace

from specanalyze.exports.export import export
from specanalyze.exports.export_events import ExportedRank, exported_ranks
from specanalyze.exports.perfetto import write_perfetto
from specanalyze.exports.tracks import tracks
from specanalyze.formats.load import open_trace
from specanalyze.trace import Trace

UnknownFieldSet = pytest.importorskip("google.protobuf.unknown_fields").UnknownFieldSet
schema = pytest.importorskip(
    "perfetto.protos.perfetto.trace.perfetto_trace_pb2",
    reason="Perfetto's schema is not installed: pip install perfetto",
)


class Rebuilt:
    """What a viewer makes of a trace: slices by track, counters, arrows. Every number is checked against the schema's parser."""

    def __init__(self, encoded: bytes) -> None:
        parsed = schema.Trace()
        parsed.ParseFromString(encoded)
        self.tracks: dict[int, Any] = {}
        self.slices: dict[int, list[tuple[int, int, str, str, str]]] = defaultdict(list)
        self.counters: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self.arrows: dict[int, list[tuple[str, int]]] = defaultdict(list)
        self.packets = len(parsed.packet)
        names: dict[str, dict[int, str]] = {
            "event_names": {},
            "event_categories": {},
            "debug_annotation_string_values": {},
        }
        stacks: dict[int, list[tuple[int, str, str, str]]] = defaultdict(list)
        for packet in parsed.packet:
            for message in (packet, packet.track_event, packet.track_descriptor, packet.interned_data):
                assert not len(UnknownFieldSet(message)), "a field that the schema does not have"
            for kind, known in names.items():
                for entry in getattr(packet.interned_data, kind):
                    assert entry.iid not in known
                    known[entry.iid] = entry.str.decode() if kind.startswith("debug") else entry.name
            if packet.HasField("track_descriptor"):
                self.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
            if not packet.HasField("track_event"):
                continue
            event, when = packet.track_event, packet.timestamp
            assert event.track_uuid in self.tracks, "a track is described before it is used"
            for flow in event.flow_ids:
                self.arrows[flow].append(("out", when))
            for flow in event.terminating_flow_ids:
                self.arrows[flow].append(("in", when))
            if event.type == event.TYPE_COUNTER:
                self.counters[self.tracks[event.track_uuid].name].append((when, event.double_counter_value))
            elif event.type == event.TYPE_SLICE_END:
                start, *words = stacks[event.track_uuid].pop()
                assert when > start
                self.slices[event.track_uuid].append((start, when - start, *words))
            else:
                facts = [names["debug_annotation_string_values"][a.string_value_iid] for a in event.debug_annotations]
                words = [
                    names["event_names"][event.name_iid],
                    names["event_categories"][event.category_iids[0]],
                    *(facts or [""]),
                ]
                if event.type == event.TYPE_INSTANT:
                    self.slices[event.track_uuid].append((when, 0, *words))
                else:
                    stacks[event.track_uuid].append((when, *words))
        assert not any(stacks.values()), "every slice is closed"


def expected(ranks: list[ExportedRank]) -> dict[str, list[tuple[Any, ...]]]:
    found = {}
    for rank in ranks:
        for track in tracks(rank):
            shown = track.slices.select("start_ns", "dur_ns", "name", pl.coalesce("bucket", "kind"), "detail")
            found[f"{rank.number}/{track.name}"] = sorted(shown.rows())
    return found


def check(recording: Trace) -> Rebuilt:
    ranks = list(exported_ranks(recording))
    file = io.BytesIO()
    count = write_perfetto(file, ranks)
    rebuilt = Rebuilt(file.getvalue())
    got = {f"{(uuid >> 16) - 1}/{rebuilt.tracks[uuid].name}": sorted(slices) for uuid, slices in rebuilt.slices.items()}
    want = expected(ranks)
    assert got == want
    assert count == sum(map(len, want.values()))
    return rebuilt


def test_slices_counters_and_arrows() -> None:
    rows = [
        phase(
            "spec.cycle",
            1_795_964_426_162_386_906,
            1_795_964_426_162_387_006,
            cycle=3,
            batch_size=2,
            accept_lengths=[3, 2],
        ),
        phase("spec.verify", 1_795_964_426_162_386_910, 1_795_964_426_162_387_000),
        launch("cudaGraphLaunch", 1_795_964_426_162_386_911, 7),
        kernel('void k<"x", 1>()', 1_795_964_426_162_386_930, 1_795_964_426_162_386_940, 7),
        kernel("empty", 1_795_964_426_162_386_940, 1_795_964_426_162_386_940, 7),
    ]
    rebuilt = check(trace(rank_trace(rows), rank_trace(rows, rank=1)))
    processes = [(d.process.pid, d.process.process_name) for d in rebuilt.tracks.values() if d.HasField("process")]
    assert processes == [(1, "rank 0"), (2, "rank 1")], "two hosts may use one process id; a viewer would merge them"
    assert rebuilt.counters == {
        "accept length (tokens a request)": [(1_795_964_426_162_386_906, 2.5)] * 2,
        "batch size (requests)": [(1_795_964_426_162_386_906, 2.0)] * 2,
    }
    arrow = [("out", 1_795_964_426_162_386_911), ("in", 1_795_964_426_162_386_930)]
    assert list(rebuilt.arrows.values()) == [arrow, arrow]


def test_a_real_recording(reference: Path) -> None:
    folder = reference / "traces" / "sglang_h200" / "tp2"
    rebuilt = check(open_trace([folder / f"e2_m17_rank{i}.json.gz" for i in (0, 1)]))
    pairs = [sorted(ends) for ends in rebuilt.arrows.values()]
    assert len(pairs) > 1000
    whole = [ends for ends in pairs if len(ends) == 2]
    assert len(whole) > 1000
    assert all(ends[0][0] == "in" and ends[1][0] == "out" for ends in whole)


def test_kernels_that_overlap_on_one_stream_keep_their_times(reference: Path) -> None:
    check(open_trace([reference / "traces/public/tracelens_sglang_qwen3-30b-a3b_decode_cudagraph_b300.json.gz"]))


def test_the_file(tmp_path: Path) -> None:
    recording = trace(rank_trace([phase("spec.verify", 0, 9), launch("cudaLaunchKernel", 1, 1), kernel("k", 2, 5, 1)]))
    done = export(recording, "perfetto", tmp_path / "t.pftrace")
    assert done.files == [tmp_path / "t.pftrace"]
    assert Rebuilt((tmp_path / "t.pftrace").read_bytes()).packets > 5


def test_no_arrow_leads_from_one_window_to_another() -> None:
    rows = []
    for window, at in enumerate((1000, 2000)):  # a profiler counts its ids from anew in each window
        rows += [
            launch("cudaLaunchKernel", at + 10, 5, window=window),
            kernel("flash_fwd_kernel", at + 30, at + 40, 5, window=window),
        ]
    arrows = sorted(sorted(ends) for ends in check(trace(rank_trace(rows))).arrows.values())
    assert arrows == [[("in", 1030), ("out", 1010)], [("in", 2030), ("out", 2010)]]


def test_the_bytes_are_those_of_the_recording_alone() -> None:
    """Not of what else this process has read: polars numbers texts as it meets them."""
    recording = trace(rank_trace([phase("spec.verify", 0, 90), launch("cudaGraphLaunch", 1, 7), kernel("b", 3, 9, 7)]))

    def written() -> bytes:
        file = io.BytesIO()
        write_perfetto(file, exported_ranks(recording))
        return file.getvalue()

    before = written()
    assert before.index(b"spec.verify") < before.index(b"cudaGraphLaunch") < before.index(b"verify other_compute")
    pl.Series(["zz", "b", "cudaGraphLaunch", "spec.verify"]).cast(pl.Categorical)
    assert written() == before

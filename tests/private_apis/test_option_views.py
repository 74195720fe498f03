import argparse

from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions, WorkerOptions

from pipeline.private_apis.option_views import kept_views


def test_views_are_kept(monkeypatch):
    """Each kind of view is parsed once for the same options, and sees and sets their values; others have their own."""
    parsed = []
    parse = argparse.ArgumentParser.parse_known_args
    monkeypatch.setattr(
        argparse.ArgumentParser, "parse_known_args", lambda *arguments: parsed.append(arguments) or parse(*arguments)
    )
    options, others = (PipelineOptions(["--runner=X", f"--num_workers={n}"]) for n in (1, 2))
    before = PipelineOptions.view_as
    with kept_views():
        parsed.clear()
        for _ in range(2):
            assert options.view_as(StandardOptions).runner == "X"
            assert options.view_as(StandardOptions).view_as(WorkerOptions).num_workers == 1
        assert len(parsed) == 2
        assert others.view_as(WorkerOptions).num_workers == 2
        options.view_as(WorkerOptions).num_workers = 3
        assert options.view_as(WorkerOptions).num_workers == 3
        assert others.view_as(WorkerOptions).num_workers == 2
    assert PipelineOptions.view_as is before
    assert options.view_as(WorkerOptions).num_workers == 3

import struct

import pytest

from pipeline.toolbox.charts import BandPoint, save_band, terminal_band

HOUR = 3_600_000_000


def points(count):
    return [BandPoint(1_771_286_400_000_000 + i * HOUR, 10.0 + i, 12.0 + i, 15.0 + i) for i in range(count)]


@pytest.mark.parametrize("count", [1, 2, 24])
def test_terminal(count):
    """The chart is as wide and high as asked, says its title and its hours, and is plain text."""
    lines = terminal_band(points(count), "cellar-1 temperature", width=70, height=12).splitlines()
    assert len(lines) == 12
    assert max(map(len, lines)) == 70
    assert "cellar-1 temperature" in lines[0]
    assert "00:00" in lines[-1]
    assert not any("\x1b" in line for line in lines)


@pytest.mark.parametrize("count", [1, 24])
def test_png(tmp_path, count):
    """The file is a PNG of a size to be looked at."""
    path = tmp_path / "band.png"
    save_band(points(count), "cellar-1: temperature", "°C", path)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n")
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height) == (1350, 600)

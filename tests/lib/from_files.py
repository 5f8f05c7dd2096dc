"""What `taskd diagnose --from` says of files."""
import json


def diagnose(stage, *paths, code=0):
    """Its report; with another `code` its errors."""
    done = stage.run("diagnose", "--json", "--from", *map(str, paths))
    assert done.returncode == code, (done.returncode, done.stderr)
    return json.loads(done.stdout) if code == 0 else done.stderr


def named(report):
    return [(verdict["scope"], verdict["ids"]) for verdict in report["verdicts"]]


def notes(report):
    return " | ".join(note["text"] for note in report["notes"])

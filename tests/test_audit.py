"""`make audit` without its database: one sentence and a failure."""

from program_modules import ROOT, load_module


def test_audit_fails_for_a_package_that_could_not_be_looked_up(tmp_path, monkeypatch, capsys):
    audit = load_module(ROOT / "scripts" / "audit.py")
    page = tmp_path / "page.html"
    page.write_text("<html>a mirror</html>")
    assert "something else" in audit.reachable(page.as_uri())
    page.write_text('{"info": {}, "vulnerabilities": []}')
    assert audit.reachable(page.as_uri()) == ""
    monkeypatch.setattr(audit, "reachable", lambda: "no route to host")
    assert audit.main() == 1
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "nothing was looked up" in printed
    assert "no route to host" in printed

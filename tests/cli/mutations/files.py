"""Files that are not configs."""

from collections.abc import Iterator
from pathlib import Path

from tests.cli.mutations.base import Mutation, as_yaml, base


def files() -> Iterator[Mutation]:
    """Yield all of them, and a few configs that are written in an unusual way."""
    text = as_yaml(base())
    for name, content in _wrong(text).items():
        yield Mutation(f"a file of {name}", content, True)
    yield Mutation("a file with a byte order mark", b"\xef\xbb\xbf" + text.encode())
    yield Mutation("a file with a section twice", f"{text}\nclient: {{epochs: 2}}\n", True)
    yield Mutation("a file with a key twice", text.replace("epochs: 1\n", "epochs: 1\n  epochs: 2\n", 1), True)
    yield Mutation("a file with Windows line ends", text.replace("\n", "\r\n"), False)


def _wrong(text: str) -> dict[str, str | bytes]:
    levels = range(1, 12)
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in levels)
    return {
        "empty": "",
        "a comment": "# nothing",
        "null": "null",
        "a number": "3",
        "a list": "[1, 2]",
        "text": "abc",
        "not UTF-8": text.encode() + b"# \xff\xfe",
        "Latin-1": "server: {weighting: \u00fc}".encode("latin-1"),
        "UTF-16": text.encode("utf-16"),
        "zeros": b"\0" * 100,
        "binary": bytes(range(256)),
        "tabs": "client:\n\tepochs: 1",
        "deep lists": "client: " + "[" * 5000 + "]" * 5000,
        "deep mappings": "client: " + "{a: " * 3000 + "1" + "}" * 3000,
        "a bomb": bomb,
        "a bomb in a section": f"{text}\nx: 1\n{bomb}",
        "a recursive anchor": "client: &a {callbacks: *a}",
        "a recursive list": "trainer: {callbacks: &a [*a]}",
        "an unknown alias": "client: *a",
        "unclosed": "client: {epochs: 1",
        "two documents": f"{text}\n---\n{text}",
        "a Python tag": "client: !!python/object/apply:os.mkdir [executed]",
        "an unknown tag": "client: !a {epochs: 1}",
        "passwords": Path("/etc/passwd").read_bytes(),
        "a long line": "x" * 100_000,
        "JSON that is cut": '{"client": {"epochs"',
        "keys of several types": "{1: 2, null: 3, [1]: 4}",
        "merge": "client: {<<: 3}",
        "a carriage return": "client:\r  epochs: 1\r",
        "a directive": "%YAML 9.9\n---\nclient: {epochs: 1}",
        "XML": "<client><epochs>1</epochs></client>",
        "Python": "import os\nos.mkdir('executed')\n",
        "many keys": "\n".join(f"key{n}: 1" for n in range(3000)),
        "an empty key": "'': 1",
        "dots": "'client..epochs': 1",
    }

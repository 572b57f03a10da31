"""Makes the parser's tables from the grammar: `python -m tools.parser_tables`, after each change of
`normgen/dsl/norm.lark`. They are shipped because lark takes half a second to make them."""

from __future__ import annotations

import io
import json
import pickle
from hashlib import sha256
from pathlib import Path
from typing import Any

import lark

DSL = Path(__file__).parent.parent / "normgen" / "dsl"
GRAMMAR, TABLES = DSL / "norm.lark", DSL / "tables.json"
OPTIONS: dict[str, Any] = {
    "parser": "lalr",
    "lexer": "basic",
    "start": ["spec", "prelude"],
    "keep_all_tokens": True,
    "maybe_placeholders": True,
}


def digest() -> str:
    """What the tables depend on."""
    return sha256(f"{OPTIONS}\n{GRAMMAR.read_text(encoding='utf-8')}".encode()).hexdigest()


def made() -> dict[str, Any]:
    """The tables. Of the options only those above, which every version of lark knows."""
    with io.BytesIO() as file:
        lark.Lark(GRAMMAR.read_text(encoding="utf-8"), **OPTIONS).save(file)
        tables: dict[str, Any] = pickle.loads(file.getvalue())
    tables["data"]["options"] = OPTIONS
    return tables | {"digest": digest()}


def main() -> None:
    TABLES.write_text(json.dumps(made(), separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

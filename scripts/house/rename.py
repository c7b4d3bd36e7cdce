"""Rename modules, packages and what they define, everywhere, by a table: `rename.py TABLE [--dry]`, in the root of the checkout.

Rows, separated by blanks: `m OLD NEW` for a module or package (what lies in it goes along), `n MODULE.OLD NEW` for a class, function or constant (of the old module).
Files move by `git mv`; imports and all that refers to them is rewritten by what the names are bound to, and dotted names and paths in
strings, comments, documents and configuration by their text. What would hide another name of a file is left as an alias and reported.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, QualifiedNameProvider, QualifiedNameSource, ScopeProvider

ROOTS = {"unhang": Path("src/unhang"), "tests": Path("tests")}
TEXTS = ("*.md", "*.toml", "*.cfg", "*.yml", "*.yaml", "*.tsv", "*.txt", "*.json", "*.ini", "Makefile", "scripts/check", "*.sh", "*.html", "*.js")


def of_file(path: Path) -> str | None:
    for root, at in ROOTS.items():
        if path.is_relative_to(at):
            parts = [root, *path.relative_to(at).with_suffix("").parts]
            return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return None


def path_of(module: str, *, package: bool) -> Path:
    root, _, rest = module.partition(".")
    at = ROOTS[root].joinpath(*rest.split(".")) if rest else ROOTS[root]
    return at / "__init__.py" if package else at.with_suffix(".py")


class Table:
    def __init__(self, text: str) -> None:
        self.modules: dict[str, str] = {}
        self.names: dict[str, str] = {}
        for row in (line.split("#")[0].split() for line in text.splitlines()):
            if row:
                {"m": self.modules, "n": self.names}[row[0]][row[1]] = row[2]
        self.prefixes = sorted(self.modules, key=len, reverse=True)

    def module(self, name: str) -> str:
        for old in self.prefixes:
            if name == old or name.startswith(old + "."):
                return self.modules[old] + name[len(old) :]
        return name

    def full(self, name: str) -> str:
        """A dotted name of a module, or of what one defines."""
        for old, new in self.names.items():
            if name == old or name.startswith(old + "."):
                where = old.rpartition(".")[0]
                return f"{self.module(where)}.{new}{name[len(old) :]}"
        return self.module(name)


def dotted(node: cst.BaseExpression) -> str:
    return node.value if isinstance(node, cst.Name) else f"{dotted(node.value)}.{node.attr.value}"  # type: ignore[attr-defined]


def expression(name: str) -> cst.Name | cst.Attribute:
    head, _, last = name.rpartition(".")
    return cst.Attribute(expression(head), cst.Name(last)) if head else cst.Name(last)


class Rewrite(cst.CSTTransformer):
    METADATA_DEPENDENCIES = (QualifiedNameProvider, ScopeProvider)

    def __init__(self, table: Table, module: str | None, is_package: bool, bound: set[str]) -> None:
        super().__init__()
        self.table, self.own, self.is_package = table, module, is_package
        self.bound, self.reports, self.local = bound, list[str](), dict[str, str]()
        self.imported_as = dict[str, str]()
        self.in_import = self.in_annotation = 0

    def visit_Annotation(self, node: cst.Annotation) -> bool:
        self.in_annotation += 1
        return True

    def leave_Annotation(self, original: cst.Annotation, updated: cst.Annotation) -> cst.Annotation:
        self.in_annotation -= 1
        return updated

    def absolute(self, node: cst.ImportFrom) -> str:
        name = dotted(node.module) if node.module else ""
        if node.relative:
            parts = (self.own or "").split(".")
            parts = parts[: len(parts) - len(node.relative) + (1 if self.is_package else 0)]
            name = ".".join([*parts, *([name] if name else [])])
        return name

    def visit_Import(self, node: cst.Import) -> bool:
        self.in_import += 1
        return True

    def leave_Import(self, original: cst.Import, updated: cst.Import) -> cst.Import:
        self.in_import -= 1
        return updated.with_changes(
            names=[
                alias.with_changes(name=expression(self.table.module(dotted(alias.name))))
                if self.table.module(dotted(alias.name)) != dotted(alias.name)
                else alias
                for alias in updated.names
            ]
        )

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def leave_ImportFrom(
        self, original: cst.ImportFrom, updated: cst.ImportFrom
    ) -> cst.BaseSmallStatement | cst.FlattenSentinel[cst.BaseSmallStatement]:
        where = self.absolute(original)
        if where.split(".")[0] not in ROOTS:
            return updated
        if isinstance(updated.names, cst.ImportStar):
            new = self.table.module(where)
            return updated if new == where else updated.with_changes(module=expression(new), relative=[])
        by_home: dict[str, list[cst.ImportAlias]] = defaultdict(list)
        changed = False
        for alias in updated.names:
            name = alias.name.value  # type: ignore[union-attr]
            new = self.table.full(f"{where}.{name}")
            home, _, leaf = new.rpartition(".")
            changed |= new != f"{where}.{name}"
            asname = alias.asname
            if leaf != name and asname is None and self.binding(name, f"{where}.{name}") != leaf:
                asname = cst.AsName(cst.Name(name), whitespace_before_as=cst.SimpleWhitespace(" "), whitespace_after_as=cst.SimpleWhitespace(" "))
            by_home[home].append(cst.ImportAlias(cst.Name(leaf), asname))
        if not changed:
            return updated
        if original.relative and len(by_home) == 1 and (self.own is not None):
            # Stays relative: those that run in processes of other Pythons are not in the package there.
            (home,) = by_home
            base = self.table.module(self.own).split(".")
            base = base[: len(base) - len(original.relative) + (1 if self.is_package else 0)]
            rest = home[len(".".join(base)) + 1 :] if home.startswith(".".join(base)) else None
            if rest is not None:
                return updated.with_changes(module=expression(rest) if rest else None, names=by_home[home])
        made = [
            updated.with_changes(
                module=expression(home),
                relative=[],
                names=[*names],
                lpar=updated.lpar if len(by_home) == 1 else None,
                rpar=updated.rpar if len(by_home) == 1 else None,
            )
            for home, names in by_home.items()
        ]
        return made[0] if len(made) == 1 else cst.FlattenSentinel(made)

    def binding(self, old: str, full: str) -> str:
        """The name that an imported thing gets in this file."""
        if full in self.imported_as:
            return self.imported_as[full]
        leaf = self.table.full(full).rpartition(".")[2]
        if leaf != old and leaf in self.bound:
            self.reports.append(f"{self.own}: {old} stays, {leaf} is taken")
            leaf = old
        self.imported_as[full] = leaf
        return leaf

    def resolved(self, node: cst.CSTNode) -> set[tuple[str, bool]]:
        found = self.get_metadata(QualifiedNameProvider, node, set())
        if callable(found):
            found = found()
        return {(self.whole(q.name), q.source is QualifiedNameSource.IMPORT) for q in found}

    def whole(self, name: str) -> str:
        """A name with its package where it was imported relatively."""
        dots = len(name) - len(name.lstrip("."))
        if not dots:
            return name
        parts = (self.own or "").split(".")
        parts = parts[: len(parts) - dots + (1 if self.is_package else 0)]
        return ".".join([*parts, name[dots:]])

    def leave_SimpleString(self, original: cst.SimpleString, updated: cst.SimpleString) -> cst.SimpleString:
        new = in_text(updated.value, self.table)
        for old, name in self.table.names.items():
            if self.own and old.startswith(self.own + ".") and new in (f"'{old.rpartition('.')[2]}'", f'"{old.rpartition(".")[2]}"'):
                new = f'"{name}"'
        return updated.with_changes(value=new) if new != updated.value else updated

    def leave_FormattedStringText(self, original: cst.FormattedStringText, updated: cst.FormattedStringText) -> cst.FormattedStringText:
        new = in_text(updated.value, self.table)
        return updated.with_changes(value=new) if new != updated.value else updated

    def leave_Comment(self, original: cst.Comment, updated: cst.Comment) -> cst.Comment:
        new = in_text(updated.value, self.table)
        return updated.with_changes(value=new) if new != updated.value else updated

    def leave_Name(self, original: cst.Name, updated: cst.Name) -> cst.Name:
        for name, is_import in self.resolved(original):
            if is_import and name.split(".")[0] in ROOTS:
                # `import a.b as c` and `from a import b as c` keep c.
                if name.rpartition(".")[2] == original.value and self.table.full(name) != name and "." in name and not self.in_import:
                    return updated.with_changes(value=self.binding(original.value, name))
            elif not is_import and self.own and name == original.value and f"{self.own}.{name}" in self.table.names:
                return updated.with_changes(value=self.table.names[f"{self.own}.{name}"])
        if self.in_annotation and self.own and not self.resolved(original) and f"{self.own}.{original.value}" in self.table.names:
            # Annotations of a module's variables are not resolved.
            return updated.with_changes(value=self.table.names[f"{self.own}.{original.value}"])
        return updated

    def leave_Attribute(self, original: cst.Attribute, updated: cst.Attribute) -> cst.BaseExpression:
        if self.in_import:
            return updated
        for name, is_import in self.resolved(original):
            if is_import and name.split(".")[0] in ROOTS and (new := self.table.full(name)) != name:
                leaf, old = new.rpartition(".")[2], name.rpartition(".")[2]
                try:
                    as_written = dotted(original)
                except AttributeError:
                    continue
                if as_written == name:
                    # Written out as `import unhang.records` and `unhang.records.x`.
                    return expression(new)
                if old == original.attr.value and leaf != old:
                    return updated.with_changes(attr=cst.Name(leaf))
        return updated


def rewritten(args: tuple[str, str]) -> tuple[str, str, list[str]]:
    path, _text = args
    table = Table(Path(sys.argv[1]).read_text())
    source = Path(path).read_text("utf-8")
    own = of_file(Path(path))
    reports: list[str] = []
    leaves = {o.rpartition(".")[2] for o in (*table.modules, *table.names)}
    if any(re.search(rf"\b{re.escape(leaf)}\b", source) for leaf in leaves) or "unhang" in source or "from ." in source:
        wrapper = MetadataWrapper(cst.parse_module(source))
        bound = {n.value for n in _bound(wrapper.module)}
        rewrite = Rewrite(table, own, Path(path).name == "__init__.py", bound)
        source = wrapper.visit(rewrite).code
        reports = rewrite.reports
    return path, source, reports


def _bound(module: cst.Module) -> list[cst.Name]:
    names: list[cst.Name] = []

    class Visit(cst.CSTVisitor):
        def visit_Name(self, node: cst.Name) -> None:
            names.append(node)

        def visit_Attribute(self, node: cst.Attribute) -> bool:
            node.value.visit(self)
            return False

        def visit_Arg(self, node: cst.Arg) -> bool:
            node.value.visit(self)
            return False

    module.visit(Visit())
    return names


def in_text(text: str, table: Table) -> str:
    """Dotted names and paths in what is no code."""
    if not hasattr(table, "patterns"):
        olds = sorted({*table.modules, *table.names}, key=len, reverse=True)
        table.patterns = re.compile(r"(?<![\w.])(?:" + "|".join(re.escape(o) for o in olds) + r")(?![\w])")  # type: ignore[attr-defined]
        paths = sorted(
            {o.partition(".")[2].replace(".", "/") for o in table.modules if o.startswith("unhang.") and o.count(".") > 1}, key=len, reverse=True
        )
        tests = sorted({o.replace(".", "/") for o in table.modules if o.startswith("tests.")}, key=len, reverse=True)
        table.paths = re.compile(r"(?<![\w-])(src/unhang/|unhang/)?(" + "|".join(map(re.escape, paths)) + r")(?=[/.`\s),:;\"']|$)") if paths else None  # type: ignore[attr-defined]
        table.tests = re.compile(r"(?<![\w/.-])(" + "|".join(map(re.escape, tests)) + r")(?=[/.`\s),:;\"']|$)") if tests else None  # type: ignore[attr-defined]
    text = table.patterns.sub(lambda m: table.full(m[0]), text)  # type: ignore[attr-defined]
    if table.paths:  # type: ignore[attr-defined]
        text = table.paths.sub(lambda m: (m[1] or "") + table.module("unhang." + m[2].replace("/", ".")).partition(".")[2].replace(".", "/"), text)  # type: ignore[attr-defined]
    if table.tests:  # type: ignore[attr-defined]
        text = table.tests.sub(lambda m: table.module(m[1].replace("/", ".")).replace(".", "/"), text)  # type: ignore[attr-defined]
    return text


def listed(*patterns: str) -> list[str]:
    out = subprocess.run(["git", "ls-files", "-z", *patterns], capture_output=True, text=True, check=True).stdout
    return [p for p in out.split("\0") if p and not p.startswith("scripts/house/rename")]


def main() -> None:
    table = Table(Path(sys.argv[1]).read_text())
    only_reports = "--dry" in sys.argv
    python = listed("*.py")
    with ProcessPoolExecutor(2) as pool:
        for path, text, reports in pool.map(rewritten, [(p, "") for p in python], chunksize=8):
            for report in reports:
                print(report)
            if not only_reports and text != Path(path).read_text("utf-8"):
                Path(path).write_text(text, "utf-8")
    if only_reports:
        return
    for path in listed(*TEXTS):
        if path.startswith(("tests/corpus", "tests/diagnosis/cases", "tests/diagnosis/healthy", "tests/diagnosis/provoked", "CHANGELOG")):
            continue
        try:
            before = Path(path).read_text("utf-8")
        except UnicodeDecodeError:
            continue
        if (after := in_text(before, table)) != before:
            Path(path).write_text(after, "utf-8")
    moves: list[tuple[str, str]] = []
    # Stale caches would be packages.
    subprocess.run(["git", "clean", "-fdqX", "src", "tests"], check=True)
    for path in listed(*(str(r) for r in ROOTS.values())):
        module = of_file(Path(path))
        assert module is not None
        if path.endswith(".py"):
            new = table.module(module)
            if new != module:
                package = Path(path).name == "__init__.py"
                moves.append((path, str(path_of(new, package=package))))
        else:
            folder = of_file(Path(path).parent / "__init__.py")
            assert folder is not None
            if (new := table.module(folder)) != folder:
                moves.append((path, str(path_of(new, package=True).parent / Path(path).name)))
    for old, new in moves:
        Path(new).parent.mkdir(parents=True, exist_ok=True)
        if Path(new).exists() and Path(new).name == "__init__.py" and Path(old).stat().st_size:
            kept = [line for line in Path(old).read_text().split('"""', 2)[2].splitlines() if line.strip()]
            with Path(new).open("a") as f:
                f.write("\n".join(kept) + "\n")
            subprocess.run(["git", "rm", "-qf", old], check=True)
            print(f"{old}: joined to {new}")
            continue
        if Path(new).exists():
            print(f"{old}: {new} exists")
            continue
        subprocess.run(["git", "mv", old, new], check=True)


if __name__ == "__main__":
    main()

"""What the generators of pages share: Markdown, and pages that are written or compared."""

import os
import re
import sys

# A name of the header, a member or a call in a comment.
NAME = re.compile(r"(?<![\w`.\"/])(?:dt_\w+(?:\.\w+|\(\))*|DT_[A-Z]\w*|\.[a-z]\w+(?:\.\w+)*)(?![\w`/\"])")

PAGE = re.compile(r"docs/([\w/-]+\.md)((?:#[\w-]+)?)")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def table(lines, columns):
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)] +
                     ["| " + " | ".join(line) + " |" for line in cells]) + "\n"


def inline(text, up=""):
    """A comment's words as Markdown: names are code, pages are links, and no sign means anything.
    up: from the page to docs/."""
    parts, at = [], 0
    for match in re.finditer(r"`[^`]*`|" + PAGE.pattern + "|" + NAME.pattern, text):
        link = PAGE.fullmatch(match[0])
        parts += [escaped(text[at:match.start()]),
                  f"[{link[1]}]({up}{link[1]}{link[2]})" if link else "`" + match[0].strip("`") + "`"]
        at = match.end()
    return "".join(parts) + escaped(text[at:])


def escaped(text):
    return re.sub(r"(?<!\w)_|_(?!\w)|\*(?! )|(?<! )\*|<(?=[\w/!])|\](?=\()", r"\\\g<0>", text)


def blocks(comment, up=""):
    """A comment as Markdown: paragraphs, and what it indents as it is."""
    out, code, held = [], [], []
    for line in [*comment.split("\n"), ""]:
        indented = re.match(r"\s{2,}\S", line) and not held
        if not indented and code and (line.strip() or not code[-1]):
            out.append("```text\n" + "\n".join(code).rstrip() + "\n```")
            code = []
        if indented or code:
            code.append(line)
        elif line.strip():
            held.append(line.strip())
            continue
        if held:
            out.append(inline(" ".join(held), up))
            held = []
    return "\n\n".join(out + (["```text\n" + "\n".join(code).rstrip() + "\n```"] if code else []))


def write_or_check(pages, generator):
    """pages: path -> text. With --check nothing is written; what is stale ends the program."""
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(f"{generator} takes no argument but --check")
    for path, text in pages.items():
        if os.path.exists(path) and read(path) == text:
            continue
        if sys.argv[1:]:
            sys.exit(f"{path} is not current: run {generator}")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

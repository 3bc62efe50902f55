"""The commands and programs of all pages: python3 tests/scripts/pages.py [PAGE...]

Each ```sh block of README.md and docs/ runs as it stands, in a folder of its page where build/, examples/,
tools/ and dtrain.h are, and the page's programs under the names that the page gives them. Without a name the
program before a command is the file that it compiles. `cc` and
`c++` there link the library's objects instead of compiling them. A line that matches a row of commands.txt does
not run, nor does a block that matches a row with "block": the row has the test that runs it, or why none does.
A ./build.sh line is held to the command's help.
Each program of a page is run by its page's commands, or by guide.sh. guide.sh calls this; `library` and
`reader_libs` are build.sh's. --list compiles and runs nothing.
"""

import glob
import os
import re
import shutil
import socket
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
os.chdir(ROOT)
WORK = os.path.join(ROOT, "build/test_pages")
TABLE = "tests/scripts/commands.txt"
SECONDS = 60
TWO_LINES = '#define DT_IMPLEMENTATION\n#include "dtrain.h"\n'
PROGRAM = '#include "dtrain.h"\nint main(void) { return !dt_result_text(DT_OK); }\n'
SHIM = """#!/bin/sh
case " $* " in *" -c "*) objects= ;; *) objects="{objects}" ;; esac
exec {compiler} -DDTI_IMPLEMENTED -I{root}/build/include "$@" $objects
"""


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def rows():
    """(pattern, reason) of commands.txt: a line each, a tab between."""
    for line in read(TABLE).split("\n"):
        if line and not line.startswith("#"):
            pattern, reason = line.split("\t")
            yield re.compile(pattern), reason


def blocks(text):
    """(line, language, code, text before it) of a page's blocks."""
    at = 0
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.S | re.M):
        yield text.count("\n", 0, match.start()) + 1, match[1], match[2], text[at:match.start()]
        at = match.end()


def pages():
    wanted = [a for a in sys.argv[1:] if not a.startswith("--")]
    found = ["README.md", "CONTRIBUTING.md"] + sorted(glob.glob("docs/**/*.md", recursive=True))
    return [p for p in found if not wanted or any(w in p for w in wanted)]


def wrong_help(line):
    """What is wrong with a line of ./build.sh."""
    command, *words = re.sub(r"^(?:\w+=\S+ )*./build.sh\s*", "", line).split()
    if command not in re.search(r"^commands='(.*)'$", read("build.sh"), re.M)[1].split():
        return f"./build.sh has no command {command}"
    said = "".join(map(read, glob.glob(f"tools/{command}.sh") + ["tools/help.sh"]))
    said += "".join(map(read, re.findall(r"tools/[\w/]+\.\w+|examples/\w+\.c", said)))
    said += {"train": read("examples/fashion_mnist.c"), "plan": read("tools/view/dtinfo_plan.h")}.get(command, "")
    unknown = [w for w in words if w.startswith("--") and w.split("=")[0].lstrip("-") not in said]
    return f"./build.sh {command} has no option {unknown[0]}" if unknown else ""


def script_of(code, used):
    """The lines of a block that run, and what is wrong with others."""
    kept, bad = [], []
    for pattern, _ in TABLE_ROWS:
        if pattern.pattern.startswith("block ") and re.search(pattern.pattern[len("block "):], code, re.M):
            used.add(pattern.pattern)
            return "", []
    for line in code.replace("\\\n", " ").split("\n"):
        row = next((r for r in TABLE_ROWS if r[0].search(line)), None)
        if row:
            used.add(row[0].pattern)
        elif re.match(r"(?:\w+=\S+ )*\./build\.sh ", line):
            bad += filter(None, [wrong_help(re.sub(r"\s+#.*", "", line))])
        else:
            kept.append(line)
    return "\n".join(kept), bad


def prepare(page):
    folder = os.path.join(WORK, re.sub(r"\W", "_", page))
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder + "/bin")
    for name in ("build", "examples", "tools", "tests"):
        os.symlink(os.path.join(ROOT, name), os.path.join(folder, name))
    objects = " ".join(os.path.join(ROOT, o) for o in os.environ.get("library", "").split())
    objects += " -lm -ldl -lpthread " + os.environ.get("reader_libs", "")
    for name, compiler in (("cc", os.environ.get("CC", "cc")), ("c++", os.environ.get("CXX", "c++"))):
        with open(f"{folder}/bin/{name}", "w", encoding="utf-8") as file:
            file.write(SHIM.format(objects=objects, compiler=shutil.which(compiler),
                                   root=ROOT))
        os.chmod(f"{folder}/bin/{name}", 0o755)
    os.symlink(os.path.join(ROOT, "build/dtrun"), folder + "/bin/dtrun")
    for name, text in (("dtrain.c", TWO_LINES), ("app.c", PROGRAM), ("page.c", PROGRAM)):
        write(os.path.join(folder, name), text)
    return folder


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def run(folder, script):
    """The error of a block, or nothing."""
    script = "set -e\n" + script.replace("29400", free_port())
    path = f"{folder}/bin:{os.environ['PATH']}"
    try:
        done = subprocess.run(["sh", "-c", script], cwd=folder, env={**os.environ, "PATH": path}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace", timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"not done after {SECONDS} s"
    return "" if not done.returncode else "\n".join(done.stdout.split("\n")[-6:]) or f"status {done.returncode}"


def page_runs(page, used, only_list):
    """What is wrong with a page; its blocks run in order."""
    bad, ran, programs, folder = [], "", [], None
    for line, language, code, before in blocks(read(page)):
        whole = language in ("c", "cpp") and "main(" in code
        if whole or language == "sh" and not folder:
            folder = folder or (page if only_list else prepare(page))
        if whole:
            names = re.findall(r"`([\w-]+\.(?:c|cpp))`", before) or ["app.cpp" if language == "cpp" else "page.c"]
            programs.append((line, len(programs) + 1, names[-1], code))
            only_list or write(os.path.join(folder, names[-1]), code)
        if language == "sh":
            script, wrong = script_of(code, used)
            for source in re.findall(r"^(?:cc|c\+\+) .*?([\w-]+\.c(?:pp)?)\b", script, re.M):
                if programs and not only_list and not os.path.exists(os.path.join(folder, source)):
                    write(os.path.join(folder, source), programs[-1][3])
                    programs[-1] = (*programs[-1][:2], source, programs[-1][3])
            bad += [f"{page}:{line}: {w}" for w in wrong]
            ran += script + "\n"
            if script.strip() and only_list:
                print(f"{page}:{line}:\n" + re.sub("^", "    ", script.strip(), flags=re.M))
            elif re.sub(r"^\s*#.*", "", script, flags=re.M).strip():
                begun = time.monotonic()
                error = run(folder, script)
                print(f"{time.monotonic() - begun:5.1f} s  {page}:{line}")
                bad += [f"{page}:{line}: {error}\nif no test can run it, {TABLE} needs a row"] if error else []
    guide, name = read("tests/scripts/guide.sh"), os.path.basename(page)[:-3]
    for line, number, source, _ in programs:
        if not re.search(rf"\bprogram {re.escape(name)} (?:{number}|\$n)\b", guide) and source not in ran and \
                page not in WHOLE_ELSEWHERE:
            bad.append(f"{page}:{line}: no test runs this program: add it to tests/scripts/guide.sh")
    return bad


# Programs that a test outside of guide.sh has.
WHOLE_ELSEWHERE = {"README.md": "tests/scripts/apps.sh"}
TABLE_ROWS = list(rows())


def main():
    used, bad = set(), []
    for page in pages():
        bad += page_runs(page, used, "--list" in sys.argv)
    if len(pages()) > 20:
        bad += [f"{TABLE}: no page has {p.pattern}" for p, _ in TABLE_ROWS if p.pattern not in used]
    for _, reason in TABLE_ROWS:
        test = re.match(r"(\w+\.sh)(?:: (\w+))?$", reason)
        if test and (not os.path.exists("tests/scripts/" + test[1]) or
                     test[2] and test[2] not in read("tests/scripts/" + test[1])):
            bad.append(f"{TABLE}: there is no test {reason}")
    print("\n".join(bad))
    sys.exit(bool(bad))


main()

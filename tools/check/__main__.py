#!/usr/bin/env python3
"""What ./build.sh check runs: everything about the sources that is not a test.

Each check prints one line, `ok` or `FAILED` with what is wrong and what to do. The exit status is 1
when one failed. `./build.sh check NAME...` runs only the checks named:

    format layers places systems header api shaders readers vendors launches docs functions fields order
    calls callbacks symbols parts alone public snippets implementation tools prose texts glossary
"""

import glob
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import SourceFileLoader

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
os.chdir(ROOT)
sys.dont_write_bytecode = True
amalgamate = SourceFileLoader("amalgamate", "tools/generate/amalgamate").load_module()
pipelines = SourceFileLoader("pipelines", "tools/check/pipelines.py").load_module()


# Made from src/ by every run. A text from standard input includes <dtrain.h>. By "dtrain.h" the
# compiler would find the committed one first, which only check_header and check_api are about.
HEADER, API, INCLUDES = "build/include/dtrain.h", "build/include/api.json", ("-Ibuild/include", "-I.")


def listed_files():
    """The files of src/dtrain.c's list, in its order: the one list of files, layers and rooms."""
    return re.findall(r'#include "((?!\.\.)[^"]+/[^"]+)"', amalgamate.read("src/dtrain.c"))


# Bottom to top. A layer may use what stands before it.
LAYERS = list(dict.fromkeys(n.split("/")[0] for n in listed_files()))
# Layers whose files too use only those before them: what is asked of later ones goes by a pointer.
ORDERED = ["comm"]
# Names that a layer may not use although they are below it. The backend is used through backend.h,
# and code is made without a device, a store or a program.
HIDDEN = {"lower": r"\bdti_(?:vk|cpu|ref)_\w+|\bdt_store\b|\bdt_program\b|\bdti_device\b|\bdti_memory\b",
          "program": r"\bdti_vk_\w+", "nn": r"\bdti_(?:vk|cpu|ref)_\w+",
          "data": r"\bdti_(?:vk|cpu|ref)_\w+",
          "file": r"\bdti_(?:vk|cpu|ref)_\w+"}
# What a layer above op/ needs to know of a row, or above optim/ of a kernel, their tables say; known
# by name are leaves, and what a backend looks for faults with.
KERNEL_ID = r"\bDTI_K_(?!COUNT\b|SCAN\b)\w+"
ROW_ID = r"\bDTI_OP_(?!INPUT\b|PARAM\b|TEXT\b)\w+"
# Layers that say rows in the words of another format: a table by row is what they are.
TRANSLATORS = ["export"]
WARNINGS = ("-Wall -Wextra -pedantic -Wshadow -Wconversion -Wstrict-prototypes "
            "-Wmissing-prototypes -Werror").split()
CXX_WARNINGS = "-Wall -Wextra -pedantic -Wshadow -Wconversion -Werror".split()
GENERATED = {"src/backend/vulkan/shader_table.h", "src/backend/vulkan/vk_decl.h",
             "src/op/core/kernel_list.h", "src/op/families/families.h", "src/kernel/isa_list.h",
             "src/base/options.h", "src/base/features.h"}
# The hard stop is for functions; tables, dispatch and validators are named here with a reason.
FUNCTION_LINES = 70
LONG_FUNCTIONS = {}
# Of one command. The slowest, a compilation of everything, takes a tenth of it.
TIMEOUT_SECONDS = 300


def run(*command, text=None):
    try:
        return subprocess.run(command, input=text, stdout=subprocess.PIPE, timeout=TIMEOUT_SECONDS,
                              stderr=subprocess.STDOUT, text=True, errors="replace")
    except subprocess.TimeoutExpired:
        late = f"{' '.join(command)}: not done after {TIMEOUT_SECONDS} s"
        return subprocess.CompletedProcess(command, 1, late)


def head(text, lines=12):
    rows = text.strip().split("\n")
    return "\n".join(rows[:lines] + (["..."] if len(rows) > lines else []))


def sources(*patterns):
    names = [n for p in patterns for n in glob.glob(p, recursive=True)]
    return sorted(n for n in set(names) if n not in GENERATED)


def check_format():
    """Style is .clang-format's; lines end at 100 columns also where it cannot break them."""
    tool = shutil.which("clang-format-14") or shutil.which("clang-format")
    if not tool:
        return "clang-format is missing"
    files = sources("src/**/*.[ch]", "examples/*.c", "tests/**/*.[ch]", "tools/**/*.c", "shaders/args.h")
    # One process for all: to start one for each takes twice as long as to look at the files.
    done = run(tool, "--style=file", "--dry-run", "--Werror", *files)
    wrong = sorted(set(re.findall(r"(?m)^(\S+?):\d+:\d+: error: ", done.stdout)))
    bad = [f"{name}: run {os.path.basename(tool)} -i {name}" for name in wrong]
    if done.returncode and not wrong:
        bad.append(head(done.stdout))
    for name in files:
        bad += [f"{name}:{i}: longer than 100 columns"
                for i, line in enumerate(amalgamate.read(name).split("\n"), 1) if len(line) > 100]
    return "\n".join(bad)


CODE = re.compile(r'"(?:\\.|[^"\\\n])*"')


def code_of(name):
    """The code of a file: without comments and strings."""
    return CODE.sub('""', amalgamate.blank_comments(amalgamate.read(name)))


# Definitions, not calls or prototypes: at a line's start, up to '{'.
FUNCTION = re.compile(r"^(?![ \t#}])[^;{}#=]*?\b(dti?_\w+)\s*\((?:[^(){};]|\([^(){};]*\))*\)\s*\{", re.M)
ABSENT = re.compile(r"^DTI_ABSENT\([\w *]+,\s*(dti_\w+),", re.M)
STRUCT = re.compile(r"^\s*(?:typedef\s+)?(?:struct|union|enum)\s+(dti_\w+)\s*\{", re.M)
MACRO = re.compile(r"^\s*#\s*define\s+(DTI_\w+)", re.M)


def layers_of_names(code):
    """name -> the lowest layer that defines it."""
    found = {}
    for name, text in code.items():
        layer = LAYERS.index(name.split("/")[1])
        for pattern in (FUNCTION, STRUCT, MACRO):
            for symbol in pattern.findall(text):
                if layer < found.get(symbol, (len(LAYERS), ""))[0]:
                    found[symbol] = (layer, name)
    return found


def upward_calls(layer):
    """In a layer of ORDERED: calls of a function that a later file of the list defines. Headers may
    declare it; a prototype in a .c file is what this is about."""
    order = [n for n in listed_files() if n.startswith(layer + "/") and n.endswith(".c")]
    code = {n: code_of("src/" + n) for n in order}
    place = {}
    for at, name in enumerate(order):
        for symbol in FUNCTION.findall(code[name]) + ABSENT.findall(code[name]):
            place.setdefault(symbol, at)
    return [f"src/{name} uses {symbol} of src/{order[place[symbol]]}, which stands after it in "
            "src/dtrain.c: move it, or ask by a pointer that the later file sets"
            for at, name in enumerate(order)
            for symbol in sorted(set(re.findall(r"\bdti_\w+", code[name])))
            if place.get(symbol, 0) > at]


# Of these first words of names anybody may make one: dti_is_digit, dti_is_nil.
COMMON_WORDS = {"is"}


def shared_words(layer, code):
    """A layer of ORDERED shares no first word of a name (dti_WORD_...) with another layer.

    In one translation unit a word has one meaning."""
    own, others = {}, {}
    for name, text in code.items():
        for symbol in FUNCTION.findall(text) + STRUCT.findall(text):
            words = others if name.split("/")[1] != layer else own
            if symbol.startswith("dti_"):
                words.setdefault(symbol.split("_")[1], f"{symbol} ({name})")
    return [f"{own[word]} and {others[word]} begin with the same word: rename one"
            for word in sorted(set(own) & set(others) - COMMON_WORDS)]


# Folders where a header lists all files in reading order, each with what it does.
READING_ORDER = ("backend/", "comm/message/", "comm/protocol/", "data/", "loop/", "op/", "parallel/",
                 "program/", "server/", "train/")
READING_ROW = re.compile(r"^ \* {3}((?:[\w/]+\.[ch](?:, )?)+) {3}", re.M)


def bad_reading_order():
    """Files that no reading order has, and rows without a file."""
    files = sources("src/*/**/*.[ch]")
    rows = [(name, os.path.basename(n)) for name in files
            for row in READING_ROW.findall(amalgamate.read(name)) for n in row.split(", ")]
    known = {os.path.basename(n) for n in files + sorted(GENERATED)}
    listed = {n for _, n in rows} | {os.path.basename(name) for name, _ in rows}
    return [f"{name}: no header lists it in its reading order: add a row with what it does"
            for name in files if name.endswith(".c") and name[4:].startswith(READING_ORDER)
            and os.path.basename(name) not in listed] + [
                f"{name}: its reading order has {n}, which is not there" for name, n in rows
                if n not in known]


DESIGN = ["docs/architecture.md", *sorted(glob.glob("docs/design/*.md"))]


def bad_list():
    """Faults of src/dtrain.c's list, and of other places that name it."""
    bad, folders = [], [os.path.dirname(n) for n in listed_files()]
    for at, folder in enumerate(folders):
        room = folder.split("/")[0] in ORDERED and "/" in folder
        if room and folder != folders[at - 1] and folder in folders[:at]:
            bad.append(f"src/dtrain.c: the files of {folder} do not stand together")
    seen = {}
    for name in sources("src/*/**/*.[ch]"):
        base = os.path.basename(name)
        if base in seen and not seen[base].startswith("src/api/"):
            bad.append(f"{name} and {seen[base]} have one name: a file is called by it alone")
        seen[base] = name
    bad += bad_reading_order()
    page = "".join(amalgamate.read(n) for n in DESIGN)
    bad += [f"docs/design: no table of folders has `{folder}/`: say what is in it"
            for folder in sorted(set(folders)) if f"`{folder}/`" not in page and
            f"`{re.sub('^(?:base|comm)/', '', folder)}/`" not in page]
    wanted = ", ".join(LAYERS)
    if wanted not in " ".join(amalgamate.read("CONTRIBUTING.md").split()):
        bad.append(f"CONTRIBUTING.md: the layers' order in src/dtrain.c is {wanted}")
    return bad


def check_layers():
    """A file uses its own layer and earlier ones; no two files have one name."""
    files = [n for n in sources("src/*/**/*.[ch]") if not n.startswith("src/api/")]
    unknown = [n for n in files if n.split("/")[1] not in LAYERS]
    if unknown:
        return f"{unknown[0]}: its folder is no layer; the layers are {', '.join(LAYERS)}"
    code = {n: code_of(n) for n in files}
    defined, bad = layers_of_names(code), []
    for name, text in code.items():
        layer = name.split("/")[1]
        for symbol in sorted(set(re.findall(r"\b(?:dti?_\w+|DTI_\w+)", text))):
            at = defined.get(symbol)
            if at and at[0] > LAYERS.index(layer):
                bad.append(f"{name} ({layer}) uses {symbol} of {at[1]} ({LAYERS[at[0]]}), "
                           "which is above it")
        if layer in HIDDEN:
            bad += [f"{name}: {layer} may not name {symbol}"
                    for symbol in sorted(set(re.findall(HIDDEN[layer], text)))]
        if LAYERS.index(layer) > LAYERS.index("optim"):
            bad += [f"{name}: {kernel} is named above optim/: ask a column of its row, DTI_KERNEL"
                    for kernel in sorted(set(re.findall(KERNEL_ID, text)))]
        if LAYERS.index(layer) > LAYERS.index("op") and layer not in TRANSLATORS:
            bad += [f"{name}: {row} is named above op/: ask a column of its row in op_table.h"
                    for row in sorted(set(re.findall(ROW_ID, text)))]
    bad += [line for layer in ORDERED for line in upward_calls(layer) + shared_words(layer, code)]
    bad += bad_list()
    for name in sources("src/backend/*.[ch]"):  # devices are reached through the list of drivers
        bad += [f"{name}: what all backends share may not name {symbol}"
                for symbol in sorted(set(re.findall(r"\bdti_(?:vk|cpu)_\w+", code[name])))]
    listed = set(re.findall(r'#include "([^"]+)"', amalgamate.read("src/dtrain.c")))
    families = amalgamate.read("src/op/families/families.h")
    listed |= {"op/families/" + n for n in re.findall(r'#include "([^"]+)"', families)}
    included = set(re.findall(r'#include "(?:[^"]*/)?([^"/]+)"', "".join(
        amalgamate.read(n) for n in files)))
    bad += [f"{n} is compiled by nothing: add it to src/dtrain.c" for n in files
            if n[4:] not in listed and os.path.basename(n) not in included]
    return "\n".join(bad)


# The number of files that one adds or edits by hand for one more of a kind. They are counted as
# those whose code names an existing one; calls of it, tests and docs apart. A kind's number falls,
# or has its reason here. A loss is 3 where its kernels are those of terms, as mse's are.
PLACES = {"mish": ("an elementwise op", 3), "softmax": ("an op with kernels", 6),
          "rmsprop": ("an optimizer", 2), "mse": ("a loss", 3), "nn_group_norm": ("a layer", 2)}
# A strategy has a folder of its own; beside it the public header, the tables of fields and features
# name it, and at most one more file.
STRATEGIES = {"gossip": "local", "compress": "local", "shard_degree": "zero"}
STRATEGY_PLACES = 4


def places_of(name):
    """The files that name it as a word or as words of one: dti_softmax_grad, DTI_K_SOFTMAX. A row of a
    translator may be left out, and then the op is refused by name there."""
    word = re.compile(rf"(?<![a-zA-Z]){name}(?![a-zA-Z])", re.I)
    call = re.compile(rf"(?<!dt_tensor )\bdt_(?:\w+_)?{name}\s*\(|->\s*{name}\b")
    files = sources("src/**/*.[ch]", "shaders/**/*.*")
    files = [n for n in files if n.split("/")[1] not in TRANSLATORS]
    return [n for n in files if word.search(os.path.basename(n)) or
            word.search(call.sub("", code_of(n)))]


def check_places():
    """An op, an optimizer, a loss, a layer and a strategy stand in few files, and in no more than before."""
    bad = []
    rows = [(name, kind, most, places_of(name)) for name, (kind, most) in PLACES.items()]
    rows += [(name, f"a strategy, beside {own}/", STRATEGY_PLACES,
              [n for n in places_of(name) if not n.startswith(f"src/parallel/{own}/")])
             for name, own in STRATEGIES.items()]
    for name, kind, most, files in rows:
        print(f"   {kind} ({name}): {len(files)} of {most} files: {' '.join(files)}")
        if len(files) > most:
            bad.append(f"{kind} needs {len(files)} files, and the most is {most}: {name} stands in "
                       + ", ".join(files))
    return "\n".join(bad)


# What C has, processors have, and is asked for by an option. Every other header is a system's.
PORTABLE_HEADERS = set("errno float limits locale math stdalign stdarg stdatomic stdbool stddef stdint "
                       "stdio stdlib string time immintrin arm_neon arm_acle mpi zlib "
                       "png jpeglib jerror setjmp".split())
SYSTEM_NAMES = re.compile(r"\b(?:pthread_\w+|sched_yield|nanosleep|_Thread_local|sigset_t|dlopen)\b")


def check_systems():
    """Names that differ between systems are only in base/system, and sockets only in comm/socket*."""
    bad = []
    for name in sources("src/**/*.[ch]"):
        if name.startswith(("src/base/system/", "src/comm/socket")):
            continue
        text = code_of(name)
        bad += [f"{name}: <{header}> is a system's: ask base/system for what it has"
                for header in re.findall(r"#\s*include\s+<([^>]+)>", text)
                if header[:-2] not in PORTABLE_HEADERS and not header.startswith("openssl/")]
        bad += [f"{name}: {word} is a system's: ask base/system for it"
                for word in sorted(set(SYSTEM_NAMES.findall(text)))]
    return "\n".join(bad)


def check_header():
    """The committed dtrain.h is what src/ gives."""
    return run(sys.executable, "tools/generate/amalgamate", "--check").stdout


def check_api():
    """The committed api.json is what src/api gives, all of dtrain.h; each lost name of 0.1 has a row."""
    done = run(sys.executable, "tools/generate/api", "--check")
    if not done.returncode:
        done = run(sys.executable, "tools/check/api_check")
    if done.returncode:
        return done.stdout or "tools/generate/api failed"
    print(done.stdout.rstrip())
    return ""


def check_shaders():
    """The shader table is what shaders/ gives, and the Vulkan declarations what is used."""
    registry = os.path.exists("/usr/share/vulkan/registry/vk.xml")  # Debian: libvulkan-dev
    if os.path.exists("tools/generate/vkdecl") and registry:
        done = run(sys.executable, "tools/generate/vkdecl", "--check")
        if done.returncode:
            return done.stdout or "vk_decl.h is stale: run tools/generate/vkdecl"
    if not os.path.exists("tools/generate/shaders"):
        return ""
    if not shutil.which("glslangValidator"):
        return "glslangValidator is missing: run ./build.sh shaders once"
    done = run(sys.executable, "tools/generate/shaders", "--check")
    return done.stdout or "stale: run ./build.sh shaders" if done.returncode else ""


# spirv-val's targets. Others end before SPIR-V 1.3: Vulkan 1.0, SPIR-V 1.0 to 1.2, OpenCL, OpenGL.
TARGETS = "vulkan1.1 vulkan1.1spv1.4 vulkan1.2 vulkan1.3 spv1.3 spv1.4 spv1.5 spv1.6".split()


def check_readers():
    """Other readers take each Vulkan module without a warning: spirv-val for all targets, SPIRV-Cross into MSL."""
    missing = [tool for tool in ("spirv-val", "spirv-cross") if not shutil.which(tool)]
    if missing:
        print(f"skipped readers: {missing[0]} is not installed")
        return ""
    with tempfile.TemporaryDirectory() as folder:
        def read(job):
            path = os.path.join(folder, job[0])
            done = run("spirv-val", "--target-env", job[1], path) if job[1] in TARGETS else \
                run("spirv-cross", "--msl", "--output", path + ".msl", path)
            return f"{job[0]}, {job[1]}: {head(done.stdout, 3)}" if done.returncode or done.stdout.strip() else ""

        modules = pipelines.modules()
        for name, spirv in modules.items():
            with open(os.path.join(folder, name), "wb") as file:
                file.write(spirv)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            bad = pool.map(read, [(name, target) for name in modules for target in [*TARGETS, "MSL"]])
        return head("\n".join(filter(None, bad)))


def check_vendors():
    """What vendors' compilers make of the Vulkan kernels is recorded, within its limits, and so where drivers are."""
    for option in (["--self-test"], ["--devices", "ampere,bmg,a740,navi31"]):
        done = run(sys.executable, "tools/check/vendors", *option)
        if done.returncode:
            return done.stdout or "tools/check/vendors failed"
    print(done.stdout.strip())
    return ""


PAGE_GENERATORS = ["tools/generate/ops_doc", "tools/generate/api_doc", "tools/generate/errors_doc"]


def check_docs():
    """Generated pages are what src/ gives; pages are listed, dated and short, and name only what there is."""
    for generator in PAGE_GENERATORS:
        done = run(sys.executable, generator, "--check")
        if done.returncode:
            return done.stdout or f"{generator} failed"
    shaders = sources("shaders/**/*.comp", "shaders/**/*.glsl", "shaders/**/*.h")
    known = set(re.findall(r"\b(?:dti?_\w+|DTI?_[A-Z]\w*)", "".join(
        amalgamate.read(n) for n in [HEADER] + shaders)))
    bad = []
    for name in sources("README.md", "CONTRIBUTING.md", "docs/**/*.md"):
        for i, line in enumerate(amalgamate.read(name).split("\n"), 1):
            if name == "docs/changes-0.2.md":  # names that are gone stand first: check_api
                line = re.sub(r"^\|[^|]*", "", line)
            bad += [f"{name}:{i}: there is no {n}" for n in
                    re.findall(r"\b(?:dti?_[a-z]\w*|DTI?_[A-Z]\w*)", line)
                    if n not in known and not n.endswith("_")]
    done = [run(sys.executable, "tools/check/pages", *option) for option in (["--self-test"], [])]
    return "\n".join(bad + unnamed_by_pytorch() + lost_files()) + "".join("\n" + d.stdout for d in done if d.returncode)


def lost_files():
    """Files that a design page names, by a path's end, and that are not there."""
    files = [n for folder in ("src", "shaders", "tests", "tools", "examples", "docs")
             for n in glob.glob(folder + "/**/*", recursive=True)] + ["dtrain.h"]
    ends = {"/".join(n.split("/")[i:]) for n in files for i in range(n.count("/") + 1)}
    return [f"{name}:{i}: there is no file {file}"
            for name in DESIGN for i, line in enumerate(amalgamate.read(name).split("\n"), 1)
            for file in re.findall(r"(?<![\w/.*-])((?:\w+/)*\w+\.(?:[ch]|comp|glsl|py))\b", line)
            if file not in ends]


def unnamed_by_pytorch():
    """What makes a tensor stands in docs/coming-from-pytorch.md, under the name that is looked for."""
    page = "docs/coming-from-pytorch.md"
    named = set(re.findall(r"\bdt_\w+", amalgamate.read(page)))
    made = [n for file in sources("src/api/*.h") for n in re.findall(
        r"^DT_API (?:dt_tensor|dt_recurrent) (dt_\w+)\(", amalgamate.read(file), re.M)]
    if len(made) < 150:
        return [f"only {len(made)} functions that make tensors were found in src/api"]
    return [f"{page} does not name {n}: add it to a row" for n in made if n not in named]


def check_launches():
    """No launch of seven networks leaves a GPU idle, but for those in tools/check/launches.txt."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "dtlint")
        done = run(shutil.which("clang") or "cc", "-O0", "-w", *INCLUDES, "tools/check/dtlint.c", "-o", out,
                   "-lm", "-ldl", "-lpthread")
        if done.returncode:
            return head(done.stdout)
        done = run(out, "tools/check/launches.txt")
    rows = done.stdout.rstrip().split("\n")
    print("\n".join(r for r in rows if r.startswith("   ")))
    if not done.returncode:
        return ""
    return "\n".join([r for r in rows if not r.startswith("   ")] +
                     ["tools/check/launches.txt lists what is left; a line may only become better"])


def check_functions():
    """No function is past the hard stop."""
    bad = []
    for name in sources("src/**/*.c", "src/**/*.h", "examples/*.c"):
        text = code_of(name)
        for match in FUNCTION.finditer(text):
            start = text.count("\n", 0, match.start())
            end = text.find("\n}", match.end())
            lines = text.count("\n", 0, end) - start + 2 if end >= 0 else 0
            if lines > FUNCTION_LINES and match.group(1) not in LONG_FUNCTIONS:
                bad.append(f"{name}:{start + 1}: {match.group(1)} has {lines} lines; "
                           f"the hard stop is {FUNCTION_LINES}")
    return "\n".join(bad)


FIELD = re.compile(r"X\((dt_\w+), ([\w.]+), (\w+), (\w+), \w+, \w+\)")
FIELD_TYPES = {"int": "INT INT_ZERO", "uint32_t": "U32", "uint64_t": "U64", "size_t": "SIZE",
               "bool": "BOOL", "float": "F32", "double": "F64", "const char *": "TEXT POINTER"}


def fields_of(items, struct, rows, prefix=""):
    """Members by path, with the types that a row may have.

    Descriptions in a description count too, and structs that rows go into."""
    for member in items[struct]["members"]:
        kind, path = member["type"], prefix + member["name"]
        into = any(row.startswith(path + ".") for row in rows)
        if into or kind.startswith("dt_") and kind.endswith("_desc"):
            yield from fields_of(items, kind, rows, path + ".")
        else:
            enum = items.get(kind, {}).get("kind") == "enum"
            yield path, FIELD_TYPES.get(kind, "ENUM" if enum else "POINTER OTHER")


def check_fields():
    """Each member of a description in a table of fields has a row of its type: none is forgotten."""
    items = {i.get("name"): i for i in json.loads(amalgamate.read(API))["items"]}
    rows, bad = {}, []
    for name in sources("src/**/*.c"):
        for struct, path, kind, _ in FIELD.findall(amalgamate.read(name)):
            rows.setdefault(struct, {}).setdefault(path, (name, kind))
    for struct, has in rows.items():
        want = dict(fields_of(items, struct, has))
        bad += [f"{name}: .{path} is no member of {struct}"
                for path, (name, _) in has.items() if path not in want]
        name = next(iter(has.values()))[0]
        bad += [f"{name}: no row of {struct}.{path}: it is in no check and not compared by ranks"
                for path in want if path not in has]
        bad += [f"{name}: {struct}.{path} is {kind}, not {want[path]}"
                for path, (name, kind) in has.items() if kind not in want.get(path, kind).split()]
    if sum(map(len, rows.values())) < 120:
        bad.append("few rows were found: look at FIELD in tools/check")
    return "\n".join(bad)


# Functions that give a tensor and append no node.
LOOK_UPS = {"dti_nil", "dti_nil_of", "dti_input_of", "dti_call_in", "dti_graph_fail",
            "dti_graph_no_memory"}


def arguments(text, start):
    """The arguments of the call whose '(' stands before `start`."""
    depth = 0
    for end in range(start, len(text)):
        depth += (text[end] in "([{") - (text[end] in ")]}")
        if depth < 0:
            return amalgamate.parameters(text[start:end])
    return []


def check_order():
    """No call appends or counts nodes in two of its arguments: their order is each compiler's own."""
    call, code = re.compile(r"\b(dti?_\w+)\s*\("), {}
    for name in sources("src/**/*.[ch]", "shaders/lib/*.h"):
        code[name] = code_of(name)
    made = re.compile(r"\bdt_tensor\s+(dti?_\w+)\s*\(")
    appends = {n for text in code.values() for n in made.findall(text)} - LOOK_UPS
    if len(appends) < 100:
        return f"only {len(appends)} functions that give a tensor were found"
    bad = []
    for name, text in code.items():
        for match in re.finditer(r"\b\w+\s*\(", text):
            several = [a for a in arguments(text, match.end())
                       if appends & set(call.findall(a)) or "graph->count" in a or "g->count" == a]
            if len(several) > 1:
                line = text.count("\n", 0, match.start()) + 1
                bad.append(f"{name}:{line}: {' and '.join(several[:2])}: give one a name first; ranks "
                           "compare graphs node by node")
    return "\n".join(bad)


def check_calls():
    """Every public function is called with wrong arguments: it has a row in tests/wrong/test_wrong_*.c."""
    def preprocessed(text):
        return run("gcc", "-E", "-P", "-x", "c", *INCLUDES, "-Itests", "-", text=text).stdout

    declared = re.findall(r"\bextern [^;{}()]*?\b(dt_\w+)\s*\(", preprocessed('#include <dtrain.h>\n'))
    if len(declared) < 100:
        return f"only {len(declared)} public functions were found in dtrain.h"
    files = sources("tests/wrong/test_wrong_*.c")
    rows = set(re.findall(r'\brow entry = \{"(dt_\w+)"', "".join(
        preprocessed(f'#include "{n}"\n') for n in files)))
    return "\n".join(f"{n} has no row: add ROW(..., {n}, ) to tests/wrong/test_wrong_*.c"
                     for n in declared if n not in rows)


# Without an entrance of their own. They hand their object on to a function that has one, make one,
# or read values that never change.
HANDED_ON = set("""dt_ctx_create dt_comm_create dt_comm_create_threads dt_comm_desc_from_env dt_dims_of
    dt_array_destroy dt_history_destroy dt_lr_curve_destroy dt_progress_show dt_run_log_fit dt_comm_send
    dt_comm_recv dt_comm_broadcast dt_comm_reduce dt_comm_all_reduce dt_comm_gather dt_comm_all_gather
    dt_comm_scatter dt_comm_reduce_scatter dt_comm_all_to_all dt_comm_barrier dt_comm_rank
    dt_comm_size dt_csv_get_info dt_folder_get_info dt_folder_class_name dt_folder_labels dt_tokens_rows
    dt_safetensors_count""".split())


def check_callbacks():
    """docs/embedding.md says which calls are allowed in callbacks as the entrance has it (base/enter.c)."""
    text = "".join(code_of(n) for n in sources("src/**/*.c"))
    rows = re.findall(r"\bDTI_PUBLIC(?:_[A-Z]+)?\((.*?)\) \{\n", text, re.S)
    names = {re.search(r"\bdt_\w+(?=,\s*\()", r).group(0): r for r in rows}
    table = [r.split("|")[1] for r in amalgamate.read("docs/embedding.md").split("\n")
             if r.startswith("| `dt_") and r.count("|") == 5]
    if len(names) < 140 or len(table) < 3:
        return f"only {len(names)} public functions and {len(table)} rows of the table were found"
    said = [set(re.findall(r"dt_\w+", r)) for r in table]
    bare = set(re.findall(r"^(?:DT_API )?(?!static|dt_tensor|dt_recurrent)[a-z][\w ]*[ *](dt_\w+)"
                          r"\([^;{]*\) \{\n", text, re.M))
    ends = {n for n, r in names.items() if "DTI_UNUSED" in r and not re.search("_(destroy|close)$", n)}
    reads = {n for n, r in names.items() if "DTI_READS" in r}
    bad = [f"docs/embedding.md: the table of callbacks and base/enter.c differ in {n}"
           for n in sorted((said[1] ^ reads) | (said[2] ^ ends) | (said[0] & set(names)))]
    bad += [f"{n} is no DTI_PUBLIC (base/base.h): anybody may call it at any time"
            for n in sorted(bare - said[0] - HANDED_ON)]
    return "\n".join(bad + [f"{n} ends an object and is not DTI_UNUSED" for n, r in names.items()
                            if re.search("_(destroy|close)$", n) and "DTI_UNUSED" not in r])


def compile_text(compiler, flags, text, out):
    # GCC takes 11 s for this one of -Wall, and one without it; Clang's rows have it.
    quick = ["-Wno-misleading-indentation"] if compiler == "gcc" else []
    return run(compiler, *flags, *quick, *INCLUDES, "-c", "-o", out, "-", text=text)


def check_public():
    """The declarations are written out, C99 to C20 in C++, twice included, also without warnings."""
    text, out = '#include <dtrain.h>\n#include <dtrain.h>\n', os.devnull
    use = "int main(void) { return 0; }\n"
    bad = [f"{n}: a name made of pieces (##): write each declaration out, so that a reader finds it"
           for n in sources("src/api/*.h") if "##" in code_of(n)]
    rows = [(c, "c", s, WARNINGS) for c in ("gcc", "clang") for s in ("c99", "c11", "gnu17")]
    rows += [(c, "c++", s, CXX_WARNINGS) for c in ("g++", "clang++")
             for s in ("c++11", "c++14", "c++17", "c++20")]
    for compiler, language, standard, warnings in rows:
        flags = ["-x", language, f"-std={standard}", *warnings]
        done = compile_text(compiler, flags, text + use, out)
        if done.returncode:
            bad.append(f"{compiler} -std={standard}:\n{head(done.stdout)}")
    done = compile_text("g++", ["-x", "c++", "-Wfatal-errors"],  # or it reads on for 40 s
                        "#define DT_IMPLEMENTATION\n" + text, out)
    if done.returncode == 0 or "compile the implementation as C" not in done.stdout:
        bad.append("the implementation in C++ must be an #error that says so")
    return "\n".join(bad)


ARGUMENT = re.compile(r", &\((dt_\w+_desc)\)\s*\{")
# What the snippets of the pages take for given.
AROUND = """#include <dtrain.h>
#include <stdio.h>
#include <vulkan/vulkan.h>
static struct {
    VkInstance instance; VkPhysicalDevice physical; VkDevice device; VkQueue queue; uint32_t family;
    VkSemaphore frame, step; VkBuffer coordinates, picture; uint64_t number;
} app;
void app_lock(void *), app_unlock(void *), say(void *, dt_log_level, const char *);
static void around(dt_ctx *ctx, dt_graph *graph, dt_tensor loss, dt_dataset set, dt_dataset train, dt_dataset held_out, dt_comm *comm, float *x, int n) {
    dt_optim_desc adam = {}; dt_trainer *trainer; dt_train_report report; dt_store *store; dt_tensor logits;
    (void)ctx, (void)graph, (void)loss, (void)set, (void)comm, (void)x, (void)n, (void)adam, (void)trainer, (void)report, (void)store, (void)logits;
    {
"""


def snippets():
    """(where, text, whole): C of the pages, of the essay, and the examples."""
    for name in ["README.md"] + sources("docs/**/*.md"):
        for text in re.findall(r"```c\n(.*?)```", amalgamate.read(name), re.S):
            if "DT_IMPLEMENTATION" not in text or "main(" in text:
                yield name, text, "main(" in text
    essay = re.search(r"DT_IMPLEMENTATION\n(.*?\n \*     \}\n)", amalgamate.read("src/api/essay.h"), re.S)
    yield "src/api/essay.h", re.sub(r"(?m)^ \* {0,5}", "", essay.group(1)), True
    for name in sources("examples/*.c"):
        yield name, amalgamate.read(name), True


def check_snippets():
    """What readers copy is C++20 too: its designators are in the order of the declarations."""
    bad, count = [], 0
    for name, text, whole in snippets():
        text = ARGUMENT.sub(r", \1{", text.replace("#define DT_IMPLEMENTATION", ""))
        text = text.replace('"dtrain.h"', "<dtrain.h>")
        text = text if whole else AROUND + text + "}}\n"
        done = run("g++", "-x", "c++", "-std=c++20", "-fsyntax-only", "-fpermissive", "-w", *INCLUDES, "-",
                   text=text)
        # examples have designated arrays too, which C++ has not
        wrong = "designator order" in done.stdout if name.startswith("examples/") else done.returncode
        count += 1
        if wrong:
            bad.append(f"{name}:\n{head(done.stdout)}")
    if count < 9:
        bad.append(f"only {count} snippets were found")
    return "\n".join(bad)


def check_implementation():
    """The implementation has no warnings, whatever the compiler, the options and the part."""
    text = '#include <dtrain.h>\n'
    # Optimisers' warnings are in check_symbols and check_alone. Those of -O0 and -O3, of which a
    # program is made, are in tests/scripts/machines.sh. Parsing takes a fiftieth of the time.
    parsed = [["-std=c11"], ["-std=c11", "-D_POSIX_C_SOURCE=200809L"],
              ["-O3", "-ffast-math", "-march=native"],
              ["-DDT_NO_VULKAN", "-DDT_NO_AVX512"], ["-DDT_DEBUG"],
              ["-DDT_STATIC", "-Wno-unused-function", "-Wno-unused"], ["-DDT_COMM_ONLY"],
              ["-DDT_NO_COMM", "-DDT_NO_VULKAN"]]
    if os.path.exists("/usr/include/openssl/ssl.h"):
        parsed.append(["-DDT_COMM_ONLY", "-DDT_WITH_OPENSSL"])
    features = re.findall(r"^#ifdef (DT_NO_\w+)", amalgamate.read("src/base/features.h"), re.M)
    draw = random.Random(int(os.environ.get("DTRAIN_DRAW", time.time() // 86400)))
    parsed += [["-DDT_LIGHT"], ["-DDT_LIGHT", "-DDT_NO_COMM", "-DDT_NO_VULKAN"],
               ["-D" + name for name in features if draw.random() < 0.5]]
    parsed = [["-DDT_IMPLEMENTATION", *flags] for flags in parsed]
    rows = [(compiler, ["-fsyntax-only", *flags]) for compiler in ("gcc", "clang") for flags in parsed]
    rows += [("gcc", ["-fsyntax-only", "-DDT_IMPLEMENTATION_" + part, *flags]) for part in PARTS
             for flags in ([], ["-DDT_NO_COMM"], ["-DDT_COMM_ONLY"])]  # Clang: check_parts
    rows += [("gcc", ["-fsyntax-only", "-DDT_IMPLEMENTATION", "-D" + name]) for name in features]

    def compiled(row):
        done = compile_text(row[0], ["-x", "c", *WARNINGS, *row[1]], text, os.devnull)
        return f"{row[0]} {' '.join(row[1])}:\n{head(done.stdout)}" if done.returncode else ""

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return "\n".join(bad for bad in pool.map(compiled, rows) if bad)


def check_tools():
    """The programs of tools/ compile, also those that no test runs; not what needs an MPI library."""
    def parsed(name):
        done = run("clang", "-fsyntax-only", "-w", "-DDT_WITH_OPENSSL", *INCLUDES, name)
        return f"{name}:\n{head(done.stdout)}" if done.returncode else ""

    files = [n for n in sources("tools/**/*.c") if "<mpi.h>" not in amalgamate.read(n)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return "\n".join(bad for bad in pool.map(parsed, files) if bad)


def check_prose():
    """Comments, pages and error texts are in plain words and short sentences (tools/check/prose)."""
    done = [run(sys.executable, "tools/check/prose", option) for option in ("--self-test", "--errors")]
    return "".join(d.stdout for d in done if d.returncode)


def literals(code):
    """(line, text) of each string, adjacent ones together."""
    code = re.sub(r"'(?:\\.|[^'\\\n])'", "   ", amalgamate.blank_comments(code))
    joined = r'(?<!include )"(?:\\.|[^"\\\n])*"(?:(?:\s|\\\n|\bPRI\w+)*"(?:\\.|[^"\\\n])*")*'
    for match in re.finditer(joined, code):
        text = "".join(part[1:-1] for part in CODE.findall(match.group()))
        yield code.count("\n", 0, match.start()) + 1, text


def gone_names():
    """Finds names of 0.1 in a text that the header has not: dt_x, dt_x.y, .y, `y =`, `y is `, y_z."""
    known = set()
    for item in json.loads(amalgamate.read(API))["items"]:
        parts = item.get("members", []) + item.get("values", [])
        known |= {item.get("name")} | {p["name"] for p in parts}
        known |= {f"{item.get('name')}.{p['name']}" for p in parts}
    old = set(re.findall(r"^\| `([\w.]+)` \|", amalgamate.read("docs/changes-0.2.md"), re.M)) - known
    members = {n.split(".")[1] for n in old if "." in n} - known
    any_of = [f"(?:{'|'.join(map(re.escape, sorted(names)))})"
              for names in (old, members, {n for n in members if "_" in n})]
    return re.compile(r"\b{0}\b(?!\.)|(?<!\w)\.{1}\b|\b{1} (?:=|is )|^{1}$|\b{2}\b".format(*any_of))


def check_texts():
    """No string of src/ has a name of 0.1 that is gone, or a phrase of tools/check/prose's stop list."""
    gone, bad = gone_names(), []
    stop = SourceFileLoader("prose", "tools/check/prose").load_module().STOP
    for name in set(sources("src/**/*.[ch]")) - FOREIGN:
        for line, text in literals(amalgamate.read(name)):
            found = gone.search(text)
            if found and (name, text) not in OLD_WORDS:
                bad.append(f"{name}:{line}: \"{found.group()}\" is a name of 0.1 "
                           f"(docs/changes-0.2.md): {text[:60]}")
            bad += [f"{name}:{line}: \"{hit.group()}\": write {say}: {text[:60]}"
                    for pattern, say in stop if " " in text
                    for hit in pattern.finditer(text)]
    return "\n".join(sorted(bad))


def check_glossary():
    """Each noun of the header and of src/ has a row of docs/glossary.md (tools/check/glossary)."""
    done = [run(sys.executable, "tools/check/glossary", *option) for option in (["--self-test"], [])]
    return "".join(d.stdout for d in done if d.returncode)


# Strings that have an old name and mean something else, and files whose strings are another program.
OLD_WORDS = {("src/lower/passes.c", "place"): "a pass of the compiler"}
FOREIGN = {"src/export/c_text.h"}


# Functions of libm whose last bit is each system's own; sqrt, fma and floor are exact everywhere.
INEXACT = {name + kind for name in
           "acos acosh asin asinh atan atan2 atanh cbrt cos cosh erf erfc exp exp2 expm1 hypot lgamma "
           "log log10 log1p log2 pow sin sinh tan tanh tgamma".split() for kind in ("", "f", "l")}


# What each part may cost: the one place for these numbers, and for what they buy.
BUDGETS = "docs/budgets.md"
RECORD = "--record" in sys.argv
ROW = r"^\| {} \| ([\d,.]+) (bytes|s) \| "


def over_budget(what, value):
    """What to print where a row's measured value is above its budget; --record writes a lower one."""
    text = amalgamate.read(BUDGETS)
    row = re.search(ROW.format(re.escape(what)) + r"([\d.]+) % \|", text, re.M)
    if not row:
        return [f"{BUDGETS} has no row for {what}: it has {value:,}"]
    recorded, unit = float(row[1].replace(",", "")), row[2]
    most = max(recorded * (1 + float(row[3]) / 100), recorded + 500 * (unit == "bytes"))
    if RECORD and value < recorded * (1 if unit == "bytes" else 0.9):  # seconds vary
        said = f"{value:,}" if unit == "bytes" else f"{value:.1f}"
        with open(BUDGETS, "w", encoding="utf-8") as f:
            f.write(text[:row.start(1)] + said + text[row.end(1):])
    elif unit == "bytes" and value < recorded * 0.98:
        print(f"   {what}: {value:,} bytes, recorded {row[1]}: tools/check symbols alone --record")
    return [f"{what}: {value:,} {unit}, its budget is {most:,.0f}: see {BUDGETS}"] if value > most else []


# What a name ends with that is compiled once per instruction set, or that GCC made of another.
MADE = re.compile(r"(_portable|_avx2|_avx512)$")


def folders_of_names():
    """A function that says the folder of a symbol, or "rest"."""
    defined, named, pasted = {}, {}, {}
    for name in reversed(sources("src/*/**/*.[ch]") + sorted(GENERATED)):
        folder, text = name.split("/")[1], code_of(name)
        if folder in LAYERS:
            at = LAYERS.index(folder)
            for known, pattern in ((defined, FUNCTION), (named, re.compile(r"\b(dti?_\w+)\b(?!##)")),
                                   (pasted, re.compile(r"\b(dti?_\w+)##"))):
                for word in pattern.findall(text):
                    known[word] = min(at, known.get(word, at))

    def folder_of(symbol):
        word = MADE.sub("", symbol.split(".")[0])
        if word != symbol.split(".")[0]:
            return "kernel" if re.match(r"dti_[nv]_", word) else "comm" if "fold" in word else "kernel"
        start = next((word[:i] for i in range(len(word), 4, -1) if word[:i] in pasted), None)
        at = defined.get(word, named.get(word, pasted.get(start)))
        return "rest" if at is None else LAYERS[at]
    return folder_of


def bytes_by_folder(out, total):
    folder_of, found = folders_of_names(), dict.fromkeys([*LAYERS, "rest"], 0)
    for line in run("nm", "-S", "--defined-only", out).stdout.split("\n"):
        words = line.split()
        if len(words) == 4:
            found[folder_of(words[3])] += int(words[1], 16)
    found["rest"] += total - sum(found.values())
    return found


def user_seconds(task):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = task()
    return done, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def yardstick(out):
    """How much slower than the machine of the recorded seconds this one is now."""
    text = "\n".join(f"int f{i}(int *a, int n) {{ int s = 0; for (int j = 0; j < n; j++) "
                     f"s += a[j] * {i} ^ s >> a[n - j] % {i % 7 + 1}; return s; }}" for i in range(400))
    seconds = user_seconds(lambda: compile_text("gcc", ["-x", "c", "-O2"], text, out))[1]
    row = re.search(ROW.format("yardstick"), amalgamate.read(BUDGETS), re.M)
    return seconds / float(row[1])


def header_over_budget():
    text = amalgamate.read(HEADER)
    public = text[:text.index("#if (defined DT_IMPLEMENTATION")]
    return (over_budget("header", len(text.encode())) + over_budget("public part", len(public.encode())))


def object_bytes(out):
    return sum(int(n) for n in run("size", out).stdout.strip().split("\n")[-1].split()[:3])


def check_symbols():
    """The object shows dt_ names only, takes nothing inexact of libm, and keeps its budgets."""
    text = '#define DT_IMPLEMENTATION\n#include <dtrain.h>\n'
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "dtrain.o")
        slower = yardstick(out)
        done, seconds = user_seconds(lambda: compile_text("gcc", ["-x", "c", "-O2", *WARNINGS], text, out))
        slower = (slower + yardstick(os.path.join(folder, "yardstick.o"))) / 2
        if done.returncode:
            return head(done.stdout)
        names = run("nm", "-g", "--defined-only", out).stdout.split("\n")
        taken = {n.split()[-1].split("@")[0] for n in run("nm", "-u", out).stdout.split("\n") if n}
        total = object_bytes(out)
        found = bytes_by_folder(out, total)
    wrong = [n.split()[-1] for n in names if n and not n.split()[-1].startswith("dt_")]
    print(f"   header {os.path.getsize(HEADER) / 1e6:.2f} MB, "
          f"{amalgamate.read(HEADER).count(chr(10))} lines; object {total / 1e6:.3f} MB (gcc -O2)")
    print("   " + ", ".join(f"{k} {v / 1000:.0f}" for k, v in found.items()) +
          f" KB; {seconds:.1f} s of user time, {seconds / slower:.1f} by the yardstick")
    return "\n".join([f"{n} is global and has no dt_" for n in wrong] +
                     [f"{n} of libm has other bits on another system; see dti_ln"
                      for n in sorted(taken & INEXACT)] + header_over_budget() +
                     over_budget("everything", total) + over_budget("compilation", seconds / slower) +
                     [line for folder, size in found.items() for line in over_budget(folder, size)])


# What only an option's code calls: DT_WITH_OPENSSL, DT_WITH_PNG and DT_WITH_JPEG; what DT_NO_ refuses.
OF_OPTIONS = {"dti_gmac_add", "dti_gmac_begin", "dti_gmac_close", "dti_picture_check", "dti_picture_wrong",
              "dti_env_choose_own", "dti_fail_off", "dti_graph_off"}


def check_dead():
    """Each function of src/ is reached from a public one."""
    with tempfile.TemporaryDirectory() as folder:
        out, rest = (os.path.join(folder, name) for name in ("dtrain.o", "rest.o"))
        done = compile_text("gcc", ["-x", "c", "-O0", "-w", "-fkeep-static-functions", "-ffunction-sections"],
                            '#define DT_IMPLEMENTATION\n#include <dtrain.h>\n', out)
        if done.returncode:
            return head(done.stdout)
        roots = [f"-u{n}" for n in symbols_of(out).get("T", ()) if n.startswith("dt_")]
        text = run("ld", "-r", "--gc-sections", "--print-gc-sections", *roots, out, "-o", rest).stdout
    dead = set(re.findall(r"'\.text\.(dti_\w+)'", text))
    return "\n".join(f"{n} is called by nothing that the library does" for n in sorted(dead - OF_OPTIONS)
                     if not MADE.search(n)) if roots and dead else "ld names no section"


# Functions that tables name by pieces of their names.
PASTED = re.compile(r"_emit$")


def check_parameters():
    """A parameter that a function does not use is there for those who call it by a pointer."""
    pragma = "ignored \"-Wunused-parameter\""
    text = amalgamate.read(HEADER).replace(pragma, pragma.replace("unused-parameter", "cpp"))
    said = compile_text("gcc", ["-x", "c", "-fsyntax-only", "-Wunused-parameter", "-DDT_IMPLEMENTATION"],
                        text, os.devnull).stdout
    code, unused, function, bodies = "".join(code_of(n) for n in sources("src/**/*.[ch]")), [], "", {}
    for line in said.split("\n"):
        function = (re.findall(r"In function .(\w+)", line) or [function])[0]
        unused += [(function, name) for name in re.findall(r"unused parameter .(\w+)", line)]
    for match in FUNCTION.finditer(code):
        bodies.setdefault(match[1], []).append(code[match.end():code.index("\n}", match.end())])
    pointed = set(re.findall(r"\b(dti_\w+)\b(?!\()", code))
    # Others are made by a macro, or for several systems, or use the name on another system.
    bad = [f"{function} does not use {name}: take the parameter away" for function, name in unused
           if len(bodies.get(function, ())) == 1 and not PASTED.search(function)
           and function not in pointed and not re.search(rf"\b{name}\b", bodies[function][0])]
    return "\n".join(bad) if unused else "the compiler names no parameter"


PARTS = amalgamate.parts()


def symbols_of(out):
    """{letter of nm: names} of an object, static ones too."""
    found = {}
    for line in run("nm", out).stdout.split("\n"):
        if line:
            letter, name = line.split()[-2:]
            found.setdefault(letter, set()).add(name)
    return found


def wrong_in_parts(objects, whole):
    """objects: part -> symbols_of. A letter in capitals is defined for other files to use."""
    text = amalgamate.read(HEADER)
    seam = set(re.findall(r"^DTI_SEAM\b[^;(]*?\b(dti_\w+)[(;]", text, re.M))
    shared = set(re.findall(r"\bdti_\w+", amalgamate.text_of_parts(text.split("\n"))[None]))
    tables = {part: {n for n in found.get("r", ()) if re.fullmatch(r"dti_\w+", n)}
              for part, found in objects.items()}
    shown = {part: {n for letter in "TRDBC" for n in found.get(letter, ())}
             for part, found in objects.items()}
    own = {part: {n for letter in "bd" for n in found.get(letter, ())}
           for part, found in objects.items()}
    every = set().union(*shown.values())
    bad = [f"{part} shows {n}, which is not DTI_SEAM" for part, names in shown.items()
           for n in sorted(names - seam) if not n.startswith(("dt_", "dti_parts_differ_in_", "dti_missing_"))]
    bad += [f"{n} is DTI_SEAM, and no part has it" for n in sorted(seam - every)]
    bad += [f"{n} is missing in the parts" for n in sorted(whole.get("T", set()) - every)]
    for i, part in enumerate(PARTS):
        for other in PARTS[i + 1:]:
            bad += [f"both {part} and {other} define {n}" for n in sorted(shown[part] & shown[other])]
            bad += [f"{n} is state that {part} and {other} each have by themselves"
                    for n in sorted(own[part] & own[other])]
            # A row that a macro makes in one part, and another part's table lists: it is zeros there.
            bad += [f"both {part} and {other} have a table {n}, which no shared file defines"
                    for n in sorted(tables[part] & tables[other])
                    if re.sub("_(rows|here)$", "", n) not in shared]
    return bad


def check_parts():
    """The parts of a split show dt_ names and those of the seam, and share no state."""
    with tempfile.TemporaryDirectory() as folder:
        def compiled(part):
            out = os.path.join(folder, part + ".o")
            text = f'#define DT_IMPLEMENTATION{part}\n#include <dtrain.h>\n'
            done = compile_text("clang", ["-x", "c", "-O0", "-fno-pic", *WARNINGS], text, out)
            return head(done.stdout) if done.returncode else symbols_of(out)

        names = ["", *("_" + part for part in PARTS)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            whole, *parts = pool.map(compiled, names)
    failed = [done for done in (whole, *parts) if isinstance(done, str)]
    bad = failed or wrong_in_parts(dict(zip(PARTS, parts)), whole)
    done = compile_text("clang", ["-x", "c", "-fsyntax-only", "-DDT_STATIC", "-DDT_IMPLEMENTATION_GRAPH"],
                        '#include <dtrain.h>\n', os.devnull)
    if done.returncode == 0 or "DT_STATIC keeps all" not in done.stdout:
        bad.append("a part with DT_STATIC must be an #error that says so")
    return "\n".join(bad)


# What nothing may ask of the system when no process is to be connected with another.
CONNECTS = {"socket", "connect", "bind", "listen", "accept", "send", "recv", "poll", "getaddrinfo",
            "getifaddrs", "dlopen", "execvp", "pipe"}


def check_alone():
    """Without Vulkan and dt_comm's connections nothing of a network is left. How small DT_LIGHT is then."""
    text = '#define DT_IMPLEMENTATION\n#include <dtrain.h>\n'
    alone = ["-x", "c", "-DDT_NO_VULKAN", "-DDT_NO_COMM", *WARNINGS]
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "dtrain.o")
        done = compile_text("clang", [*alone, "-O0"], text, out)
        taken = {n.split()[-1].split("@")[0] for n in run("nm", "-u", out).stdout.split("\n") if n}
        if not done.returncode:
            done = compile_text("gcc", [*alone, "-O2", "-DDT_LIGHT"], text, out)
        if done.returncode:
            return head(done.stdout)
        total = object_bytes(out)
    print(f"   object {total / 1e6:.3f} MB (gcc -O2 -DDT_LIGHT -DDT_NO_VULKAN -DDT_NO_COMM)")
    return "\n".join(over_budget("`DT_LIGHT` `DT_NO_VULKAN` `DT_NO_COMM`", total) +
                     [f"{n} is still called with DT_NO_COMM" for n in sorted(taken & CONNECTS)])


CHECKS = {
    "format": check_format, "layers": check_layers, "places": check_places,
    "systems": check_systems, "header": check_header, "api": check_api,
    "shaders": check_shaders,
    "readers": check_readers, "vendors": check_vendors, "launches": check_launches, "docs": check_docs,
    "functions": check_functions, "fields": check_fields, "order": check_order,
    "calls": check_calls,
    "callbacks": check_callbacks,
    "symbols": check_symbols, "dead": check_dead, "parameters": check_parameters,
    "parts": check_parts, "alone": check_alone, "public": check_public,
    "snippets": check_snippets, "implementation": check_implementation, "tools": check_tools,
    "prose": check_prose, "texts": check_texts, "glossary": check_glossary,
}


def processor_seconds():
    """Of this process and of those that it has waited for."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def main():
    wanted = [word for word in sys.argv[1:] if word != "--record"] or list(CHECKS)
    unknown = [n for n in wanted if n not in CHECKS]
    if unknown:
        sys.exit(f"check: unknown {unknown[0]}; there are {' '.join(CHECKS)}")
    for tool in ("amalgamate", "api"):
        made = run(sys.executable, "tools/generate/" + tool)
        if made.returncode:
            sys.exit(made.stdout)
    failed = 0
    for name in wanted:
        print(f"-- {name}: {CHECKS[name].__doc__.strip()}", flush=True)
        before = processor_seconds()
        bad = CHECKS[name]().strip()
        if bad:
            failed += 1
            print(bad)
        print(f"   {'FAILED' if bad else 'ok'}, {processor_seconds() - before:.0f} s of processor time",
              flush=True)
    print(f"{len(wanted) - failed} checks passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()

"""Brings what tools/check/vendors measures with into build/vendors: nothing is installed over the system.

Drivers are Debian sid's packages, unpacked, with sid's C library beside them. Shims are built from Debian
trixie's source of Mesa (its drm-shim folder, MIT licence) with the few edits below. sid's source package is
newer than the archive that has it. Meson comes from PyPI: Debian 12's is too old.
"""

import glob
import json
import os
import re
import shutil
import subprocess
import sys

from pipelines import ROOT, Absent

HOME = os.path.join(ROOT, "build", "vendors")
PACKAGES = ["mesa-vulkan-drivers", "libvulkan1"]
ICDS = {"nouveau": "nouveau_icd", "intel": "intel_icd", "freedreno": "freedreno_icd", "radeon": "radeon_icd"}
SHIMS = {
    "nouveau": ["src/nouveau/drm-shim/nouveau_noop.c"],
    "freedreno": ["src/freedreno/drm-shim/freedreno_noop.c"],
    "amdgpu": ["src/amd/drm-shim/amdgpu_noop_drm_shim.c", "src/amd/drm-shim/amdgpu_devices.c"],
}
OPTIONS = """buildtype=release gallium-drivers= vulkan-drivers= platforms= glx=disabled egl=disabled gbm=disabled
    opengl=false gles1=disabled gles2=disabled llvm=disabled tools=drm-shim,intel,freedreno video-codecs=
    valgrind=disabled libunwind=disabled""".split()
TARGETS = "src/drm-shim/libdrm_shim.a src/util/libmesa_util.a src/intel/tools/libintel_noop_drm_shim.so".split()


def call(*command, **more):
    """With its output in the log, whose end is shown where it fails."""
    with open(f"{HOME}/log", "a", encoding="utf-8") as log:
        done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False, **more)
    if done.returncode:
        with open(f"{HOME}/log", encoding="utf-8") as log:
            print(log.read()[-800:], file=sys.stderr)
        raise Absent(f"'{' '.join(command[:3])} ...' failed ({HOME}/log)")


def text_of(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def put(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


# ---- packages

def mirror():
    """(address, key) of the system's Debian archive."""
    for path in glob.glob("/etc/apt/sources.list.d/*.sources"):
        found = re.search(r"^URIs: *(\S+/debian)/?$", text_of(path), re.M)
        key = re.search(r"^Signed-By: *(/\S+)", text_of(path), re.M)
        if found:
            return found.group(1), key.group(1) if key else "/usr/share/keyrings/debian-archive-keyring.gpg"
    for path in ["/etc/apt/sources.list", *glob.glob("/etc/apt/sources.list.d/*.list")]:
        found = os.path.exists(path) and re.search(r"^deb (?:\[.*?\] )?(\S+/debian)/? ", text_of(path), re.M)
        if found:
            return found.group(1), "/usr/share/keyrings/debian-archive-keyring.gpg"
    raise Absent("no Debian archive is among the system's package sources")


def apt(*words):
    """apt-get with lists, packages and settings of its own."""
    call("apt-get", "-y", "-o", f"Dir={HOME}/apt", "-o", f"Dir::State::status={HOME}/apt/status",
         "-o", "APT::Architectures=amd64", "-o", "APT::Install-Recommends=false",
         "-o", f"APT::Sandbox::User={'root' if os.getuid() == 0 else ''}", *words, cwd=HOME)


def fetch():
    address, key = mirror()
    put(f"{HOME}/apt/status", "")
    # the archive's snapshot may be older than its list allows
    options = f"[signed-by={key} check-valid-until=no]"
    put(f"{HOME}/apt/etc/apt/sources.list",
        f"deb {options} {address} sid main\ndeb-src {options} {address} trixie main\n")
    for folder in ("etc/apt/preferences.d", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial"):
        os.makedirs(f"{HOME}/apt/{folder}", exist_ok=True)
    apt("update")
    apt("--download-only", "install", *PACKAGES)
    apt("source", "--download-only", "mesa")
    for package in glob.glob(f"{HOME}/apt/var/cache/apt/archives/*.deb"):
        call("dpkg", "-x", package, f"{HOME}/root")
    for name, icd in ICDS.items():
        manifest = json.loads(text_of(f"{HOME}/root/usr/share/vulkan/icd.d/{icd}.json"))
        library = os.path.basename(manifest["ICD"]["library_path"])
        manifest["ICD"]["library_path"] = f"{HOME}/root/usr/lib/x86_64-linux-gnu/{library}"
        put(f"{HOME}/icd/{name}.json", json.dumps(manifest))


# ---- shims

def edited(path, *edits):
    """Each edit: a text that is there, and what it becomes."""
    text = text_of(path)
    for before, after in edits:
        if before not in text:
            raise Absent(f"{path} has no '{before}': another version of Mesa")
        text = text.replace(before, after)
    put(path, text)


def newer_nvidia(path):
    """Ada (0x190) and Blackwell (0x1b0): their classes, before those of Ampere (0x170)."""
    case = "case 0x170:\n"
    before, first, copy, graphics, compute = re.split(r" *case 0x170:\n", text_of(path))
    classes = [None, ("0xc7b5", "0xcab5"), ("0xc997", "0xce97"), ("0xc9c0", "0xcec0")]
    out = before
    for part, names in zip((first, copy, graphics, compute), classes):
        for chip, name in zip(("0x190", "0x1b0"), names or (None, None)):
            out += f"case {chip}:" + (f" sclass->sclass.oclass[idx].oclass = {name}; break;\n" if name else "\n")
        out += case + part
    put(path, out)


def newer_amd(path):
    """gfx1201: navi31's entry with another family."""
    text = text_of(path)
    begin = text.rindex("   {\n", 0, text.index('.name = "navi31"'))
    end = text.index("\n   },\n", begin) + 6
    entry = text[begin:end]
    for before, after in (('"navi31"', '"gfx1201"'), ("CHIP_NAVI31", "CHIP_GFX1201"), ("major = 11", "major = 12"),
                          ("0xb0000", "0xc0001"), ("0x744c", "0x7550"), ("external_rev = 0x01", "external_rev = 0x51"),
                          ("AMDGPU_FAMILY_GC_11_0_0", "152")):
        if before not in entry:
            raise Absent(f"{path}: navi31 has no '{before}': another version of Mesa")
        entry = entry.replace(before, after)
    put(path, text[:end] + "\n" + entry + text[end:])


def prepare(mesa):
    newer_nvidia(f"{mesa}/src/nouveau/drm-shim/nouveau_noop.c")
    newer_amd(f"{mesa}/src/amd/drm-shim/amdgpu_devices.c")
    # RADV asks for a newer kernel, Turnip for one more call
    edited(f"{mesa}/src/amd/drm-shim/amdgpu_noop_drm_shim.c", ("version_minor = 49", "version_minor = 64"))
    edited(f"{mesa}/src/freedreno/drm-shim/freedreno_noop.c",
           ("   [DRM_MSM_SUBMITQUEUE_NEW] =", "   [0x0D] = msm_ioctl_noop,\n   [DRM_MSM_SUBMITQUEUE_NEW] ="))


def link(mesa, name, sources):
    archives = [path for folder in ("util", "util/blake3", "c11/impl")
                for path in glob.glob(f"{mesa}/build/src/{folder}/*.a")]
    include = ["include", "src", "src/nouveau/headers", "src/nouveau/winsys", "src/nouveau", "src/amd",
               "src/gallium/include", "build/src"]
    call("gcc", "-O1", "-w", "-fPIC", "-shared", "-fvisibility=hidden", "-D_GNU_SOURCE", "-DHAVE_PTHREAD",
         "-DHAVE_STRUCT_TIMESPEC", "-DHAVE_ENDIAN_H", "-DHAVE_DLFCN_H", "-DMAJOR_IN_SYSMACROS", "-DHAVE_LIBDRM",
         *(f"-I{mesa}/{folder}" for folder in include), "-I/usr/include/libdrm", "-o", f"{HOME}/shims/{name}.so",
         *(f"{mesa}/{source}" for source in sources), "-Wl,--whole-archive", f"{mesa}/build/src/drm-shim/libdrm_shim.a",
         "-Wl,--no-whole-archive", "-Wl,--start-group", *archives, "-Wl,--end-group", "-ldrm", "-ldl", "-lpthread",
         "-lz", "-lzstd", "-lm")


def build():
    call(sys.executable, "-m", "venv", f"{HOME}/venv")
    call(f"{HOME}/venv/bin/pip", "install", "-q", "meson", "ninja", "mako", "pyyaml", "packaging")
    (archive,) = glob.glob(f"{HOME}/mesa_*.orig.tar.xz")
    call("tar", "xf", archive, "-C", HOME)
    (mesa,) = glob.glob(f"{HOME}/mesa-*/")
    prepare(mesa)
    environment = {**os.environ, "PATH": f"{HOME}/venv/bin:{os.environ['PATH']}"}
    call("meson", "setup", "build", *(f"-D{option}" for option in OPTIONS), cwd=mesa, env=environment)
    call("ninja", "-C", "build", *TARGETS, cwd=mesa, env=environment)
    os.makedirs(f"{HOME}/shims", exist_ok=True)
    for name, sources in SHIMS.items():
        link(mesa, name, sources)
    os.replace(f"{mesa}/build/{TARGETS[-1]}", f"{HOME}/shims/intel.so")
    for folder in (mesa, f"{HOME}/apt", f"{HOME}/venv"):
        shutil.rmtree(folder)


def run():
    """The shim that comes last says that all is there; what is left of a run that was cut goes."""
    if os.path.exists(f"{HOME}/shims/intel.so"):
        print(f"all is there: remove {HOME} to bring it anew")
        return
    shutil.rmtree(HOME, ignore_errors=True)
    os.makedirs(HOME)
    try:
        fetch()
        build()
    except Absent as absent:
        sys.exit(f"tools/check/vendors --setup: {absent}")
    print(f"drivers and shims are in {HOME}")

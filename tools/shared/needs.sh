# Part of build.sh: what a command needs of the system, and how that is installed.
#
# A command calls `needs` first, before it compiles anything. All that is missing is one apt line. On
# a terminal the user is asked for it once; --yes and CI (CI=true or 1) run it without asking;
# otherwise the command ends with that line. Without what is optional the command goes on.

swiftshader=/usr/lib/chromium/vk_swiftshader_icd.json

may_install=ask # or yes, or no
case ${CI-} in true | 1) may_install=yes ;; esac

has_apt() { have apt-get && have dpkg-query; }

# installed PACKAGE...: whether dpkg has all of them.
installed() {
    for package in "$@"; do
        dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || return 1
    done
}

# ---- the things that commands need, and how each is found

# includes HEADER...: whether the compiler finds them.
includes() {
    for header in stdio.h "$@"; do echo "#include <$header>"; done | "$CC" -E - >/dev/null 2>&1
}

# all_of TOOL...
all_of() {
    for tool in "$@"; do have "$tool" || return 1; done
}

# packaged PACKAGE FILE: dpkg decides, where it is there.
packaged() {
    if has_apt; then installed "$1"; else [ -e "$2" ]; fi
}

# Debian's python3-minimal lacks parts of the standard library.
has_python() { python3 -c 'import json, shutil' >/dev/null 2>&1; }

compiler_package() {
    case $CC in
    */*) ;;
    cc) echo gcc libc6-dev ;;
    gcc | gcc-* | clang | clang-*) echo "$CC" libc6-dev ;;
    esac
}

# Debian packs Clang's runtime apart, and each version's by itself.
clang_runtime() {
    if have clang; then
        version=$(clang -dumpversion)
        echo "clang libclang-rt-${version%%.*}-dev"
    else
        echo clang libclang-rt-dev
    fi
}

# linker_lists PATTERN: whether the dynamic linker's list has it.
linker_lists() { (PATH=$PATH:/usr/sbin:/sbin ldconfig -p 2>/dev/null | grep -q "$1"); }

# in_any FOLDERS FILES: whether one of the folders, with ':' between them, has such a file.
in_any() {
    (
        IFS=:
        for folder in $1; do
            for file in "$folder"/$2; do [ ! -e "$file" ] || exit 0; done
        done
        exit 1
    )
}

# Vulkan's loader and a driver are looked for as on GNU/Linux, and taken as there elsewhere.
has_loader() {
    ! linker_lists 'libc\.so' || linker_lists 'libvulkan\.so\.1' || in_any "${LD_LIBRARY_PATH-}" libvulkan.so.1
}

# A manifest of any driver, where the loader looks for them.
has_driver() {
    [ -z "${VK_DRIVER_FILES-}${VK_ADD_DRIVER_FILES-}${VK_ICD_FILENAMES-}" ] || return 0
    folders=${XDG_CONFIG_HOME:-${HOME-}/.config}:${XDG_CONFIG_DIRS:-/etc/xdg}:/etc
    folders=$folders:${XDG_DATA_HOME:-${HOME-}/.local/share}:${XDG_DATA_DIRS:-/usr/local/share:/usr/share}
    ! linker_lists 'libc\.so' || in_any "$folders" 'vulkan/icd.d/*.json'
}

can_fuzz() {
    mkdir -p build/fuzz
    have clang && echo 'int LLVMFuzzerTestOneInput(void *data, long size) { return !data && size; }' |
        clang -fsanitize=fuzzer,address,undefined -x c - -o build/fuzz/probe.$$ 2>/dev/null &&
        rm -f build/fuzz/probe.$$
}

has_openmpi() { have mpicc && mpirun --version 2>/dev/null | grep -q 'Open MPI\|OpenRTE'; }
has_slurm() { ! has_apt && all_of srun munge; } # its daemons lie outside a user's PATH
has_aarch64() {
    all_of aarch64-linux-gnu-gcc qemu-aarch64 && [ -e /usr/aarch64-linux-gnu/include/stdio.h ]
}

# thing NAME: its words, its packages in Debian, and the command that finds it.
thing() {
    case $1 in
    compiler) is "a C compiler ($CC)" "$(compiler_package)" includes ;;
    gcc) is GCC gcc have gcc ;;
    cxx) is 'a C++ compiler' g++ have g++ ;;
    clang) is Clang clang all_of clang clang++ ;;
    clang_runtime) is "Clang's sanitizers and libFuzzer" "$(clang_runtime)" can_fuzz ;;
    clang_format) is clang-format clang-format-14 have clang-format-14 ;;
    binutils) is 'nm and size' binutils all_of nm size ;;
    python) is 'Python 3' python3 has_python ;;
    glslang) is glslangValidator glslang-tools have glslangValidator ;;
    spirv) is 'spirv-opt and spirv-val' spirv-tools all_of spirv-opt spirv-val ;;
    spirv_cross) is SPIRV-Cross spirv-cross have spirv-cross ;;
    data) is "Fashion-MNIST$data_note" dataset-fashion-mnist has_data ;;
    # two software drivers, and what checks the use of drivers
    loader) is "Vulkan's loader" libvulkan1 has_loader ;;
    driver) is 'a Vulkan driver' mesa-vulkan-drivers has_driver ;;
    lavapipe) is lavapipe mesa-vulkan-drivers \
        packaged mesa-vulkan-drivers "/usr/share/vulkan/icd.d/lvp_icd.$(uname -m).json" ;;
    swiftshader) is SwiftShader chromium-common packaged chromium-common $swiftshader ;;
    validation) is "Vulkan's validation layers" vulkan-validationlayers \
        packaged vulkan-validationlayers /usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json ;;
    vulkan_header) is "Vulkan's headers" libvulkan-dev includes vulkan/vulkan.h ;;
    # MAC and TLS of the collectives; deflated arrays; pictures
    openssl) is OpenSSL libssl-dev includes openssl/ssl.h ;;
    zlib) is zlib zlib1g-dev includes zlib.h ;;
    png) is libpng libpng-dev includes png.h ;;
    jpeg) is libjpeg libjpeg-dev includes jpeglib.h ;;
    # a locale with a decimal comma; applications that find dtrain by CMake and by pkg-config
    locales) is 'the locale de_DE' locales packaged locales /usr/share/i18n/locales/de_DE ;;
    cmake) is CMake 'cmake make' all_of cmake make ;;
    pkg_config) is pkg-config pkg-config have pkg-config ;;
    # Launchers, and networks between ranks. Slurm's plugin for PMIx loads the library by the name that
    # the development package has.
    openmpi) is 'Open MPI' 'openmpi-bin libopenmpi-dev' has_openmpi ;;
    mpich) is MPICH mpich have mpiexec.hydra ;;
    slurm) is Slurm 'slurm-wlm munge libpmix-dev' has_slurm ;;
    iproute) is iproute2 iproute2 have ip ;;
    # the same bits on AArch64, under an emulator
    aarch64) is 'a compiler and an emulator for AArch64' \
        'gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user' has_aarch64 ;;
    interop) is "$interop (build/venv, from PyPI)" \
        "$(installed python3-venv || echo python3-venv)" has_interop ;;
    lld) is lld lld all_of ld.lld wasm-ld ;;
    vendors) is "what Mesa's shims are built with" 'g++ flex bison pkg-config python3-venv xz-utils
        zlib1g-dev libexpat1-dev libzstd-dev libdrm-dev' has_mesa_parts ;;
    platform_*) platform_packages "${1#platform_}" ;;
    esac
}

# is WORDS PACKAGES COMMAND...: notes a thing, unless the command finds it. For what is optional its
# packages will do: whether they are of use, the command finds out.
is() {
    words=$1 packages=$2
    shift 2
    if "$@"; then return 0; fi
    if [ $level = optional ]; then
        # shellcheck disable=SC2086 # words are meant
        if has_apt && [ -n "$packages" ] && installed $packages; then return 0; fi
        optional="${optional:+$optional, }$words" optional_packages="$optional_packages $packages"
    else
        [ -n "$packages" ] || ! has_apt || die "$words is missing: install it, or set CC"
        required="${required:+$required, }$words" required_packages="$required_packages $packages"
    fi
}

# look_for THING...: what is missing is left in required and optional, as words and as packages.
look_for() {
    level=required required='' optional='' required_packages='' optional_packages=''
    for name in "$@"; do
        case $name in
        -) level=optional ;;
        *) thing "$name" ;;
        esac
    done
}

# ---- what is done about it

# needs THING...: those after '-' are optional.
needs() {
    how_to=
    look_for "$@"
    if [ -z "$required$optional" ]; then return 0; fi
    if [ -n "$required" ]; then say "./build.sh $command needs $required"; fi
    if [ -n "$optional" ]; then say "./build.sh $command can do without $optional"; fi
    if has_apt; then
        apt_line
        if agreed; then
            install_packages
            look_for "$@"
            [ -z "$required" ] || die "still missing: $required"
        fi
    fi
    [ -z "$required" ] || die "nothing is compiled: install that first$how_to"
}

# by_whom: leaves in sudo what stands before apt-get.
by_whom() {
    sudo='' can_install=yes
    if [ "$(id -u)" = 0 ]; then return 0; fi
    if have sudo; then sudo='sudo '; else can_install=no; fi
}

# apt_line: shows the one line that installs everything.
apt_line() {
    by_whom
    how_to=' by the line above, or with --yes'
    if [ $can_install = no ]; then how_to=' by the line above, as root'; fi
    # shellcheck disable=SC2086 # words are meant
    set -- $required_packages $optional_packages
    if [ $# = 0 ]; then return 0; fi
    if [ $can_install = no ]; then say 'as root:'; fi
    say "    ${sudo}apt-get install --no-install-recommends $*"
}

# agreed: --yes, CI, or the answer. What is optional and was declined is not asked for again.
agreed() {
    if [ $can_install = no ] || [ $may_install = no ]; then return 1; fi
    if [ $may_install = yes ]; then return 0; fi
    if [ ! -t 0 ] || [ ! -t 2 ]; then return 1; fi
    if [ -z "$required" ] && declined; then return 1; fi
    printf 'Install it now? [Y/n] ' >&2
    read -r answer || answer=n
    case $answer in '' | [Yy]*) may_install=yes && return 0 ;; esac
    if [ -z "$required" ]; then echo "$optional_packages" >"build/declined.$command"; fi
    return 1
}

# Whether all that is optional was declined before.
declined() {
    before=$(cat "build/declined.$command" 2>/dev/null) || return 1
    for package in $optional_packages; do
        case " $before " in *" $package "*) ;; *) return 1 ;; esac
    done
}

# apt_install PACKAGE...: waits for other processes that install.
apt_install() {
    [ $# = 0 ] || ${sudo}env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y \
        --no-install-recommends "$@" </dev/null >>build/apt.log 2>&1
}

update_lists() { ${sudo}apt-get update </dev/null >>build/apt.log 2>&1 || true; }

# A fresh system has no lists or old ones, and other systems lack some of Debian's packages.
install_packages() {
    say 'installing; build/apt.log has what apt-get says'
    : >build/apt.log
    # shellcheck disable=SC2086 # words are meant
    if apt_install $required_packages $optional_packages; then return 0; fi
    update_lists
    known=
    for package in $optional_packages; do
        if apt-cache show "$package" >/dev/null 2>&1; then
            known="$known $package"
        else
            say "apt-get has no package $package: without it"
        fi
    done
    # shellcheck disable=SC2086
    if apt_install $required_packages $known; then return 0; fi
    tail -n 5 build/apt.log >&2
    say 'apt-get failed (build/apt.log): without what is optional'
    # shellcheck disable=SC2086
    apt_install $required_packages || die 'apt-get failed'
}

# ---- steps other than apt's

# Who else reads and writes our files, in an environment of their own; without them tests skip.
interop='numpy safetensors tensorboard onnx onnxruntime'
has_interop() { [ "$(cat build/venv/ready 2>/dev/null)" = "$interop" ]; }

setup_interop() {
    if has_interop || [ $may_install != yes ]; then return 0; fi
    # shellcheck disable=SC2086 # words are meant
    if python3 -m venv build/venv && build/venv/bin/pip install -q $interop; then
        echo "$interop" >build/venv/ready
    else
        say "$interop cannot be installed: tests against them skip"
    fi
}

# What makes HTML of the pages: one version, whose warnings are known.
docs_maker=mkdocs-material==9.8.2
setup_docs() {
    if [ "$(cat build/docs_venv/ready 2>/dev/null)" = $docs_maker ]; then return 0; fi
    [ $may_install != no ] || die "docs needs $docs_maker in build/docs_venv: run it without --no-install"
    say "installing $docs_maker from PyPI into build/docs_venv: 170 MB"
    if python3 -m venv build/docs_venv >build/docs_venv.log 2>&1 &&
        build/docs_venv/bin/pip install -q $docs_maker >>build/docs_venv.log 2>&1; then
        echo $docs_maker >build/docs_venv/ready
    else
        tail -n 3 build/docs_venv.log >&2
        die "no HTML: $docs_maker cannot be installed; it needs python3-venv, and a network this once (build/docs_venv.log)"
    fi
}

# One version of zig, whose warnings are known: 100 MB.
setup_zig() {
    if have zig || have build/venv/bin/python-zig || have python-zig; then return 0; fi
    if ! python3 -m venv build/venv || ! build/venv/bin/pip install -q ziglang==0.17.1; then
        say "ziglang cannot be installed from PyPI: what zig compiles for skips"
    fi
}

# platform_packages NAME: the compiler, libraries and emulator of another platform.
platform_packages() {
    packages=
    case $1 in
    windows | mingw) packages='gcc-mingw-w64-x86-64 wine64' ;;
    web) packages='emscripten nodejs' ;;
    wasi) packages="nodejs wasi-libc libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev-wasm32" ;;
    arm64) packages='qemu-user libc6-dev-arm64-cross libgcc-12-dev-arm64-cross' ;;
    riscv64) packages='qemu-user libc6-dev-riscv64-cross libgcc-12-dev-riscv64-cross
        binutils-riscv64-linux-gnu' ;;
    armhf) packages='qemu-user libc6-dev-armhf-cross libgcc-12-dev-armhf-cross' ;;
    i386) packages='libc6-dev-i386-cross libgcc-12-dev-i386-cross' ;;
    musl) packages=musl-tools ;;
    musl_arm64) packages='qemu-user python3-venv' ;;
    windows_arm64 | macos | macos_x86_64 | freebsd | freebsd_arm64 | zig) packages=python3-venv ;;
    clang19 | clang22) packages=clang-${1#clang} ;;
    gcc_testing) packages='' ;;
    *) die "setup platforms knows no '$1'" ;;
    esac
    # shellcheck disable=SC2086 # words are meant
    is "what compiles for $1" "$packages" installed $packages
}

# setup_platforms [NAME...]: some 3 GB for all.
setup_platforms() {
    if [ $# = 0 ]; then
        set -- windows mingw web wasi arm64 riscv64 armhf i386 musl musl_arm64 windows_arm64 macos \
            macos_x86_64 freebsd freebsd_arm64 zig clang19 clang22 gcc_testing
    fi
    needs compiler python clang lld # whose version the others go by
    # shellcheck disable=SC2046 # words are meant
    needs $(printf 'platform_%s ' "$@" | sed 's/platform_clang/- &/') # not all of Debian's have these
    case " $* " in *_arm64\ * | *macos* | *freebsd* | *zig\ *) setup_zig ;; esac
    case " $* " in *gcc_testing*) sh tools/shared/gcc_testing.sh || say 'gcc_testing will skip' ;; esac
}

tests_optional='lavapipe loader swiftshader validation vulkan_header clang cxx locales cmake pkg_config
    openmpi mpich slurm iproute openssl zlib png jpeg data interop'
# Elsewhere than on x86 these tests skip.
if [ "$(uname -m)" = x86_64 ]; then tests_optional="$tests_optional aarch64"; fi

checks='compiler gcc cxx clang clang_format binutils python glslang spirv openssl'

# setup_vendors: compilers of GPUs that are not here, into build/vendors: some 450 MB.
has_mesa_parts() {
    all_of g++ flex bison pkg-config xz && pkg-config --exists zlib expat libzstd libdrm &&
        python3 -c 'import ensurepip' 2>/dev/null
}
setup_vendors() {
    [ "$(uname -m)" = x86_64 ] && has_apt || die 'setup vendors: it unpacks packages of Debian for x86_64'
    needs compiler python vendors
    python3 tools/check/vendors --setup
}

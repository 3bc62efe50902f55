#!/bin/sh
# Brings GCC of Debian testing into build/testing, as build/testing/gcc: 70 MB of packages, unpacked
# beside their own C library. Nothing is installed over the system. Called by setup platforms.
set -eu
cd "$(dirname "$0")/../.."
here=$PWD/build/testing
if [ -e "$here/gcc" ]; then exit 0; fi
archive=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
    sed -n 's#^URIs: *\([^ ]*/debian\)/*$#\1#p; s#^deb .*\(http[^ ]*/debian\)/* .*#\1#p' | head -n 1)
if [ -z "$archive" ]; then
    echo 'gcc_testing: no Debian archive is among the system'"'"'s package sources' >&2
    exit 1
fi

mkdir -p "$here/apt/etc/apt/preferences.d" "$here/apt/var/lib/apt/lists/partial" \
    "$here/apt/var/cache/apt/archives/partial" "$here/root/usr/lib" "$here/root/usr/lib64"
: >"$here/apt/status"
key=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$key check-valid-until=no] $archive testing main" >"$here/apt/etc/apt/sources.list"

apt() { # with lists, packages and settings of its own
    apt-get -y -o "Dir=$here/apt" -o "Dir::State::status=$here/apt/status" -o APT::Architectures=amd64 \
        -o APT::Install-Recommends=false -o "APT::Sandbox::User=$(id -un)" "$@" >>"$here/log" 2>&1
}
if ! apt update || ! apt --download-only install gcc libc6-dev; then
    tail -n 5 "$here/log" >&2
    exit 1
fi
for package in "$here"/apt/var/cache/apt/archives/*.deb; do dpkg -x "$package" "$here/root"; done
for folder in lib lib64; do ln -sfn usr/$folder "$here/root/$folder"; done
rm -r "$here/apt"

cat >"$here/gcc.new" <<'WRAPPER'
#!/bin/sh
# GCC by its own dynamic linker and libraries, as what it compiles.
here=$(cd "$(dirname "$0")" && pwd)/root/usr
libraries=$here/lib/x86_64-linux-gnu
loader=$libraries/ld-linux-x86-64.so.2
parts=$(echo "$here"/libexec/gcc/x86_64-linux-gnu/*)
exec "$loader" --library-path "$libraries" "$here/bin/gcc" -wrapper "$loader,--library-path,$libraries" \
    --sysroot="${here%/usr}" -B"$here/bin/" -B"$parts/" \
    "-Wl,--dynamic-linker=$loader,-rpath=$libraries" "$@"
WRAPPER
chmod +x "$here/gcc.new"
mv "$here/gcc.new" "$here/gcc"

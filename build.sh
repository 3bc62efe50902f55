#!/bin/sh
# The one entry point. ./build.sh COMMAND runs the main function of tools/COMMAND.sh, whose first lines
# are its help; tools/shared has what several commands use. Everything made lies in build/, except what
# is generated and committed.
set -eu
cd "$(dirname "$0")"

commands='train text test fuzz platforms setup header shaders build bench gpu devices plan check docs install clean help'
CC=${CC:-cc}
CFLAGS=${CFLAGS:--O2}
sanitize=

say() { printf '%s\n' "$*" >&2; }
die() { say "build.sh: $*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

. tools/shared/needs.sh
. tools/shared/compile.sh
. tools/shared/tests.sh
. tools/shared/data.sh

# help_of COMMAND: the comment at the head of its file.
help_of() { sed -n '/^#/!q; s/^# \{0,1\}//p' "tools/$1.sh"; }

# --yes, --no-install and --sanitize may stand anywhere; the other words keep their order.
count=$#
while [ "$count" -gt 0 ]; do
    word=$1
    shift
    count=$((count - 1))
    case $word in
    --yes | --install) may_install=yes ;;
    --no-install) may_install=no ;;
    --sanitize)
        [ "$count" -gt 0 ] || die '--sanitize takes address or thread'
        sanitize=$1
        shift
        count=$((count - 1))
        ;;
    *) set -- "$@" "$word" ;;
    esac
done

mkdir -p build
if [ $# = 0 ]; then
    . tools/help.sh
    brief
    exit
fi
command=$1
shift
case $command in -h | --help) command=help ;; esac
case " $commands " in
# shellcheck source=/dev/null # one of many
*" $command "*) . "tools/$command.sh" ;;
*) die "unknown command '$command'; the commands are: $commands" ;;
esac
case ${1-} in
-h | --help)
    help_of "$command"
    if [ "$(command -v more_help)" = more_help ]; then more_help; fi
    ;;
*) main "$@" ;;
esac

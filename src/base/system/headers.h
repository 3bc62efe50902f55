/* The system's headers. Only this folder and comm's sockets use names of them. The rest of the
 * library asks for what is declared here. */

#ifdef _WIN32
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <winsock2.h>
#include <windows.h>
#include <io.h>
#include <process.h>
#include <share.h>
#ifdef _MSC_VER /* clang-cl: MinGW links the one by itself, and the other by this */
#pragma comment(lib, "advapi32")
#pragma comment(lib, "ws2_32")
#endif
#undef near /* empty since pointers have one size; both are words */
#undef far
#else
#include <unistd.h>
#endif
#include <fcntl.h>
#include <sys/stat.h>
#ifdef __linux__
#include <sys/mman.h>
#include <sys/syscall.h>
#endif
#if !defined _WIN32 && !defined __wasi__
#include <dlfcn.h>
#endif

/* Under -std=c11 the C library hides POSIX; code that needs it has a fallback in C11. Not every
 * library says how much it shows: musl shows all. */
#if !defined _WIN32 && (!defined __STRICT_ANSI__ || defined __APPLE__ ||                           \
                        (defined _POSIX_C_SOURCE && _POSIX_C_SOURCE >= 199309L))
#define DTI_POSIX 1
#include <dirent.h>
#if !defined __wasi__
#include <sys/file.h>
#include <sys/ioctl.h>
#endif
#else
#define DTI_POSIX 0
#endif

/* WebAssembly has threads only where the whole program was compiled for them. */
#if defined DT_NO_THREADS || (defined __wasm__ && !defined __wasm_atomics__)
#define DTI_THREADS 0
#define DTI_THREAD_LOCAL
#else
#define DTI_THREADS 1
#define DTI_THREAD_LOCAL _Thread_local
#endif
#if DTI_THREADS && !defined _WIN32
#include <pthread.h>
#include <sched.h>
#endif
#if DTI_POSIX && !defined __wasi__ /* WASI has no such thing */
#define DTI_SIGNALS 1
#include <signal.h>
#else
#define DTI_SIGNALS 0
#endif

/* Sockets, and other functions of POSIX's edition of 2008. */
#if DTI_POSIX && !defined __wasm__ &&                                                              \
    (!defined _POSIX_C_SOURCE || _POSIX_C_SOURCE >= 200809L || defined __APPLE__)
#define DTI_POSIX_2008 1
#else
#define DTI_POSIX_2008 0
#endif

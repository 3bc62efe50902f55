/* The systems' sockets: POSIX, Winsock (link with -lws2_32), or none. Only these files include the
 * systems' headers. Stream sockets do not block, child programs inherit none, and sending raises no
 * signal. A failure sets errno; dti_socket_text() has its text. */

#if DTI_POSIX_2008
#define DTI_TCP 1
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/uio.h>
#ifndef IFF_UP /* hidden by strict C, and the same on all systems */
#define IFF_UP 1
#define IFF_LOOPBACK 8
#endif
#define dti_strtok strtok_r
#elif defined _WIN32
#define DTI_TCP 1
#include <ws2tcpip.h>
#define dti_strtok strtok_s
#else
#define DTI_TCP 0
#endif

/* Rendezvous and shared memory of ranks of one host. */
#if DTI_POSIX_2008 && defined __linux__ && defined _DEFAULT_SOURCE
#define DTI_SHARED 1
#include <sys/resource.h>
#include <sys/un.h>
#else
#define DTI_SHARED 0
#endif

/* Bytes that go out or come in, from or to one place. */
typedef struct dti_socket_part {
    void *data;
    size_t bytes;
} dti_socket_part;

static size_t dti_parts_bytes(const dti_socket_part *parts, int count) {
    size_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += parts[i].bytes;
    return bytes;
}

#if DTI_TCP
#define DTI_SOCKET_PARTS 2   /* the most of one call */
#define DTI_SOCKET_LATE (-1) /* no errno: the time is up */
#ifdef _WIN32
#define DTI_SOCKET_REUSE SO_EXCLUSIVEADDRUSE /* SO_REUSEADDR lets others take the port */
#define DTI_SOCKET_SHUT SD_SEND
#define DTI_SOCKET_CLOSE closesocket
typedef SOCKET dti_socket;
#else
#define DTI_SOCKET_REUSE SO_REUSEADDR
#define DTI_SOCKET_SHUT SHUT_WR
#define DTI_SOCKET_CLOSE close
typedef int dti_socket;
#endif

static bool
dti_sockets_begin(void); /* before any other; dti_sockets_end() for each that was true */
static void dti_sockets_end(void);
static const char *dti_socket_text(int error);

static int dti_socket_new(int family, int type); /* -1: see errno */
static void dti_socket_close(int s);             /* errno stays */
static inline void dti_socket_set(int s, int level, int option, int value) {
    setsockopt((dti_socket)s, level, option, (const char *)&value, sizeof value);
}
/* So that messages go at once, and the end of a host that says nothing any more is noticed. */
static void dti_socket_watch(int s);
static bool dti_socket_connect(int s, const void *address, socklen_t bytes); /* EINPROGRESS too */
static int dti_socket_failed(int s); /* why the connecting failed, 0 = it did not */
/* The local address of a connection or a listener; and the peer's address. They fill in
 * `address`. */
static bool dti_socket_name(int s, void *address, socklen_t *bytes);
static bool dti_socket_peer(int s, void *address, socklen_t *bytes);
static bool dti_socket_listen(int s, void *address, socklen_t *bytes);
static int dti_socket_accept(int s);
static void dti_socket_shut(int s); /* nothing more is sent */
/* more: it is followed by more at once, so a part of a packet need not go by itself. */
static int64_t dti_socket_send(int s, const dti_socket_part *parts, int count, bool more);
static int64_t dti_socket_receive(int s, const dti_socket_part *parts, int count); /* 0: the end */
static bool dti_socket_would_block(int error);
static bool dti_socket_is_refused(int error); /* nobody listens at the address */
static int dti_socket_poll(struct pollfd *polls, size_t count, int timeout_ms);

/* A descriptor to give up when there are no more; -1: not needed. */
static int dti_descriptor_reserve(void);
static void dti_descriptor_give_up(int *reserve);

/* Sets the congestion control of a socket's connections. False, with errno: the system lacks that
 * name, or does not allow it; ENOSYS: it has no choice. `text` gets the allowed ones, or
 * nothing. */
#define DTI_CONGESTION_NAME 16
static bool dti_socket_congestion(int s, const char *name);
static void dti_congestion_allowed(char *text, size_t room);

/* The system's data of a connection; false: it does not report them. */
typedef struct dti_socket_flow {
    char congestion[DTI_CONGESTION_NAME];
    uint64_t delivery_rate; /* of the newest bytes in flight in a row, bytes/s */
    uint64_t acked;         /* bytes, of all time */
    uint64_t busy_us;       /* in which something was to be sent or acknowledged */
} dti_socket_flow;
static bool dti_socket_flow_of(int s, dti_socket_flow *out);

/* Ends a poll from another thread: write to ends[1], then ends[0] is readable. */
static bool dti_wake_open(int ends[2]);
static void dti_wake_close(const int ends[2]);
static void dti_wake_write(const int ends[2]);
static void dti_wake_drain(const int ends[2]);

/* ---- of one host: a socket with a name outside of file systems, which ends with its process, and
 * memory passed through it. If DTI_SHARED is 0 each fails with ENOSYS. */

#define DTI_HOST_BYTES 8 /* distinguishes this boot of this machine from others */
#define DTI_LOCAL_BYTES 8

static bool dti_boot_id(uint8_t id[DTI_HOST_BYTES]);
static int dti_local_open(const uint8_t name[DTI_LOCAL_BYTES], bool listens); /* else connects */
/* As dti_socket_send and _receive; a descriptor goes along (-1: none), or comes (*taken stays, or
 * is closed and replaced). */
static int64_t dti_local_send(int s, const dti_socket_part *parts, int count, int passed);
static int64_t dti_local_receive(int s, const dti_socket_part *parts, int count, int *taken);
/* Memory of a fixed size that its last user frees. Mapping checks the size, so no access can fail.
 * A child of fork does not get it. */
static int dti_memfd_new(size_t bytes);
static void *dti_memfd_map(int descriptor, size_t bytes);
static void dti_memfd_unmap(void *memory, size_t bytes);
#endif

/* The test program of the collectives: the implementation with nothing but them, and the tests, of
 * which most look at internals. Compiled in seconds, under any sanitizer too. */
#define _GNU_SOURCE /* processes, network namespaces: for the tests, not for the library */
#include "harness.h"

#define DT_COMM_ONLY
#define DT_IMPLEMENTATION
#include "dtrain.h"

#include "../half.h"

#include "test_crypto.c"
#include "test_reduce.c"
#include "test_schedule.c"
#include "test_sim.c"
#include "test_backlog.c"
#include "test_env.c"
#include "test_comm.c"
#include "test_rendezvous.c"
#include "test_processes.c"
#include "test_shared.c"
#include "test_congestion.c"
#include "test_hostile.c"
#include "test_fuzz_replay.c"
#include "test_secure.c"
#include "test_message_server.c"
#include "test_hosts.c"
#include "test_choice.c"

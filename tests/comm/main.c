/* The test program of the collectives: only their part of the implementation, and the tests. Most
 * tests look at internals. Compiled in seconds, under any sanitizer too. */
#define _GNU_SOURCE /* processes, network namespaces: for the tests, not for the library */
#include "harness.h"

#define DT_COMM_ONLY
#define DT_IMPLEMENTATION
#include "dtrain.h"

#include "ops/half.h"

#include "comm/test_crypto.c"
#include "comm/test_reduce.c"
#include "comm/test_schedule.c"
#include "comm/test_sim.c"
#include "comm/test_backlog.c"
#include "comm/test_env.c"
#include "comm/test_comm.c"
#include "comm/test_rendezvous.c"
#include "comm/test_processes.c"
#include "comm/test_shared.c"
#include "comm/test_congestion.c"
#include "comm/test_hostile.c"
#include "comm/test_fuzz_replay.c"
#include "comm/test_secure.c"
#include "comm/test_message_server.c"
#include "comm/test_hosts.c"
#include "comm/test_choice.c"

/* TCP's congestion control: the chosen one is on every connection, and one that the system lacks is
 * refused. A warning appears where bbr makes operations slow. */

#include "comm/processes.h"

/* One that this system has, if possible not its default; "" = it is not known. */
static void congestion_other(char name[16]) {
    char allowed[200];
    dti_socket_flow flow = {0};
    int fd = dti_socket_new(AF_INET, SOCK_STREAM);
    socklen_t bytes = sizeof flow.congestion;
    getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, flow.congestion, &bytes);
    dti_socket_close(fd);
    dti_congestion_allowed(allowed, sizeof allowed);
    name[0] = 0;
    for (char *word = strtok(allowed, " "); word; word = strtok(NULL, " "))
        if (!name[0] || strcmp(word, flow.congestion) != 0)
            snprintf(name, 16, "%s", word);
}

/* Sums, and counts its connections and those that have the chosen algorithm. */
static void congestion_count(proc *p) {
    mate *m = &p->m;
    int32_t x = 1;
    if (!proc_join(p) || !EXPECT(m, !dt_comm_all_reduce(m->comm, &x, &x, 1, DT_I32, DT_COMM_SUM)))
        return;
    const dti_tcp *t = ((dti_tcp_group *)m->comm->state)->tcp;
    for (uint32_t i = 0; i < t->active_count; i++) {
        char name[16] = "";
        if (t->active[i]->local) /* a UNIX socket */
            continue;
        socklen_t bytes = sizeof name;
        getsockopt(t->active[i]->fd, IPPROTO_TCP, TCP_CONGESTION, name, &bytes);
        p->numbers[0]++;
        p->numbers[1] += !strcmp(name, p->all->desc.congestion);
    }
    EXPECT(m, !dt_comm_barrier(m->comm));
    proc_leave(p);
}

TEST(processes_have_the_congestion_control_that_was_asked_for_on_all_connections) {
    char name[16];
    congestion_other(name);
    if (!name[0])
        return;
    fleet *f = fleet_new(3);
    memcpy(f->desc.congestion, name, sizeof name);
    f->desc.shared_memory = DT_COMM_SHARED_OFF;
    fleet_run(f, congestion_count);
    for (int r = 0; r < 3; r++)
        CHECK(f->at[r].numbers[0] >= 2 && f->at[r].numbers[0] == f->at[r].numbers[1]);
    fleet_free(f);
}

TEST(congestion_control_that_the_system_lacks_is_refused_with_the_list_of_available_ones) {
    char name[16];
    dt_comm *comm;
    dt_comm_desc desc = {.world_size = 2,
                         .rendezvous = "tcp://127.0.0.1:1",
                         .insecure = true,
                         .congestion = "none_such"};
    congestion_other(name);
    CHECK(dt_comm_create(&desc, &comm) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_comm_error(comm), "congestion is \"none_such\"");
    CHECK_CONTAINS(dt_comm_error(comm), "no congestion control of that name");
    CHECK_CONTAINS(dt_comm_error(comm), name);
    dt_comm_destroy(comm);
}

/* Looks at connections that had `mb` more acknowledged, in `ms` of business, at `rate` MB/s. */
static int flow_said(uint64_t mb, uint64_t ms, uint64_t rate, int looks) {
    dti_tcp_flow flow = {0};
    dti_socket_flow sum = {.delivery_rate = rate * 1000000};
    int said = 0;
    for (int i = 0; i < looks; i++) {
        sum.acked += mb * 1000000;
        sum.busy_us += ms * 1000;
        said += !flow.settled && dti_flow_is_slow(&flow, &sum);
    }
    return said;
}

TEST(congestion_control_is_logged_once_when_operations_are_far_below_the_rate_of_tcp) {
    CHECK(flow_said(4, 40, 1000, 7) == 0);   /* not yet */
    CHECK(flow_said(4, 40, 1000, 100) == 1); /* 100 MB/s of 1000 */
    CHECK(flow_said(4, 40, 118, 100) == 0);  /* a link of 1 Gbit/s that is well used */
    CHECK(flow_said(0, 0, 1000, 100) == 0);  /* another rank is late */
    CHECK(flow_said(4, 1, 1000, 12) == 0);   /* too short to decide */
}

/* The time of each operation for tools/bench/dtbench_comm.c, where packets are lost: what counts is the
 * slowest of a thousand. Beside it TCP's view of the connection: its round trip and its
 * retransmission time-out. They are medians over all operations, for a time-out doubles after each
 * loss and comes back. */

static int double_compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of the first data connection: microseconds; 0: the system does not report it. */
static void tail_of_tcp(const bench *b, double *rtt_us, double *timeout_us) {
    const dti_tcp *t = ((dti_tcp_group *)b->comm->state)->tcp;
    struct tcp_info info = {0};
    socklen_t bytes = sizeof info;
    for (uint32_t i = 0; i < t->active_count; i++)
        if (t->active[i]->link->channel == DTI_CHANNEL_DATA)
            getsockopt(t->active[i]->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes);
    *rtt_us = info.tcpi_rtt;
    *timeout_us = info.tcpi_rto;
}

static int run_tail(const char *count_text, const request *r) {
    bench b = {.what = "tail", .step = step_all_reduce, .bytes = r->sizes[0]};
    int count = atoi(count_text);
    if (count < 1 || count > 1000000)
        fail(b.what, "COUNT is not in 1 .. 1000000");
    double *us = calloc((size_t)count * 3, sizeof *us);
    if (!us)
        fail(b.what, "no memory for the times");
    double *rtt = us + count, *timeout = rtt + count;
    join(&b, DT_COMM_CRC);
    get_buffers(&b, r);
    fill(&b);
    seconds_of(&b, 1);
    for (int i = 0; i < count; i++) {
        double begin = now_s();
        b.step(&b);
        us[i] = (now_s() - begin) * 1e6;
        tail_of_tcp(&b, &rtt[i], &timeout[i]);
    }
    if (!is_sum(&b))
        fail(b.what, "the sum is WRONG");
    for (int i = 0; i < 3; i++)
        qsort(us + (ptrdiff_t)i * count, (size_t)count, sizeof *us, double_compare);
    if (dt_comm_rank(b.comm) == 0)
        printf("{\"what\": \"tail\", \"bytes\": %zu, \"count\": %d, \"p50_us\": %.0f, \"p99_us\": "
               "%.0f, \"p999_us\": %.0f, \"most_us\": %.0f, \"rtt_us\": %.0f, \"rto_us\": %.0f}\n",
               b.bytes, count, us[count / 2], us[count * 99 / 100], us[(int)(count * 0.999)],
               us[count - 1], rtt[count / 2], timeout[count / 2]);
    dt_comm_destroy(b.comm);
    free(us);
    return 0;
}

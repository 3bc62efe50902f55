/* A run's log. One call's text is first put together, for each file, and then appended by one write
 * each. */

typedef enum dti_log_format {
    DTI_LOG_CSV,
    DTI_LOG_JSON,
    DTI_LOG_EVENTS,
    DTI_LOG_FORMATS
} dti_log_format;

typedef struct dti_log_file {
    bool wanted;
    char *path;
    dti_growing file;
    dti_text text; /* of the call under way */
} dti_log_file;

struct dt_run_log {
    dti_base *base;
    dti_log_file files[DTI_LOG_FORMATS];
    dti_text part; /* of a record */
    uint64_t every;
    double now;       /* the time of day of the call under way */
    dt_result closed; /* the error that closed it */
};

/* Several numbers at once: add each, then write. */
static void dti_run_log_begin(dt_run_log *log);
static const char *dti_log_join(dt_run_log *log, const char *group, const char *name);
static void dti_run_log_number(dt_run_log *log, const char *name, uint64_t step, double value);
static void dti_run_log_restarts(dt_run_log *log, uint64_t step);
static dt_result dti_run_log_write(dt_run_log *log);

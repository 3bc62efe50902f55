/* The application's buffers as a program's inputs and outputs, on the application's Vulkan device.
 * Also the VkBuffer of a parameter's values. Nothing is copied. Ranges that are too small or
 * overlap are an error. So are class numbers and indices, because only dt_program_write checks
 * those. */

static dt_result dti_external_wrong(const dt_program *p, uint32_t index, const char *what) {
    return dti_code_fail(p->code, DT_ERROR_INVALID, ".external[%u], %s, %s", index,
                         dti_tensor_name(p->code->desc.external[index].tensor).text, what);
}

/* The binding that lies in a buffer; NULL: none, or two. */
static const dti_binding *dti_external_binding(const dti_code *code, uint32_t index) {
    const dti_binding *found = NULL;
    for (uint32_t i = 0; i < code->binding_count; i++) {
        if (code->bindings[i].external != index + 1)
            continue;
        if (found)
            return NULL;
        found = &code->bindings[i];
    }
    return found;
}

static bool dti_external_overlaps(const dt_vulkan_buffer *a, const dt_vulkan_buffer *b) {
    return a->buffer == b->buffer && a->offset < b->offset + b->bytes &&
           b->offset < a->offset + a->bytes;
}

static dt_result dti_external_check(const dt_program *p, uint32_t index) {
    const dt_external_buffer *all = p->code->desc.external;
    const dt_vulkan_buffer *m = &all[index].memory;
    const dt_device_info *info = &p->store->device->info;
    const dti_binding *binding = dti_external_binding(p->code, index);
    if (!binding)
        return dti_external_wrong(
            p, index, "must be either an input that the program reads or one of .outputs");
    if (binding->check_count)
        return dti_external_wrong(
            p, index,
            "holds class numbers or indices, which dt_program_write must check: write them");
    if (m->bytes < binding->bytes || m->offset > UINT64_MAX - m->bytes)
        return dti_code_fail(
            p->code, DT_ERROR_INVALID, ".external[%u] has %llu bytes at %llu, but %s needs %llu",
            index, (unsigned long long)m->bytes, (unsigned long long)m->offset,
            dti_tensor_name(all[index].tensor).text, (unsigned long long)binding->bytes);
    if (m->offset % info->offset_alignment)
        return dti_code_fail(
            p->code, DT_ERROR_INVALID,
            ".external[%u].memory.offset is %llu; it must be a multiple of %u on %s", index,
            (unsigned long long)m->offset, info->offset_alignment, info->name);
    for (uint32_t i = 0; i < index; i++)
        if (dti_external_overlaps(&all[i].memory, m))
            return dti_external_wrong(p, index, "overlaps an earlier one");
    return DT_OK;
}

static dt_result dti_program_import(dt_program *p) {
    const dt_external_buffer *all = p->code->desc.external;
    dti_device *device = p->store->device;
    dt_result result = DT_OK;
    if (all[0].tensor.graph && !device->hosts)
        return dti_external_wrong(p, 0,
                                  "needs a store on the application's device, dt_ctx_desc.vulkan");
    for (uint32_t i = 0; i < DT_MAX_OUTPUTS && all[i].tensor.graph && !result; i++) {
        result = dti_external_check(p, i);
        if (!result)
            result = device->backend->memory_import(device, &all[i].memory, &p->external[i]);
    }
    return result;
}

static void dti_program_drop_imports(dt_program *p) {
    for (uint32_t i = 0; i < DT_MAX_OUTPUTS; i++)
        if (p->external[i])
            p->store->device->backend->memory_destroy(p->external[i]);
}

DTI_PUBLIC(dt_store_vulkan_buffer,
           (dt_store * s, int index, dt_value_kind kind, dt_vulkan_buffer *out), s,
           DTI_OF(dt_store), (s, index, kind, out)) {
    DTI_NEED(s->base, out);
    *out = (dt_vulkan_buffer){0};
    dt_param_info info = {0};
    DTI_TRY(dt_store_get_param(s, index, &info));
    const uint64_t bytes = dti_arena_bytes(info.elements);
    dti_store_place p;
    DTI_TRY(dti_store_locate(s, index, kind, (size_t)bytes, &p));
    if (p.in_array && s->layout.parted)
        return dti_fail(s->base, DT_ERROR_UNSUPPORTED,
                        "dt_store_vulkan_buffer: replicas shard the state "
                        "(dt_trainer_desc.parallel.zero_stage), so '%s' has no single buffer",
                        info.name);
    if (!s->device->hosts)
        return dti_fail(s->base, DT_ERROR_INVALID,
                        "dt_store_vulkan_buffer: the store is on %s, not on a device of "
                        "dt_ctx_desc.vulkan",
                        s->device->info.id);
    s->device->backend->memory_where(p.memory, out);
    out->offset += p.offset;
    out->bytes = bytes;
    return DT_OK;
}

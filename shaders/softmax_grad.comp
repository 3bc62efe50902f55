/* dx from (y, dy): y * (dy - sum(y * dy)), or with log (spec0) dy - exp(y) * sum(dy). A workgroup
 * per row. May run in place. Offsets: x_offset is that of y, y_offset that of dx. */
#version 450
#extension GL_GOOGLE_include_directive : require
#include "lib/types.glsl"
#include "lib/functions.glsl"
#include "lib/reduce.glsl"
#include "lib/row.glsl"

DTI_PUSH(DTI_ARGS_ROWS)
layout(binding = 0) readonly buffer buffer_y { float y[]; };
layout(binding = 0) readonly buffer buffer_y4 { vec4 y4[]; };
layout(binding = 1) readonly buffer buffer_dy { float dy[]; };
layout(binding = 1) readonly buffer buffer_dy4 { vec4 dy4[]; };
layout(binding = 2) writeonly buffer buffer_dx { float dx[]; };
layout(binding = 2) writeonly buffer buffer_dx4 { vec4 dx4[]; };
DTI_ROW_READ(y_at, y, y4)
DTI_ROW_READ(dy_at, dy, dy4)

void main()
{
    uint row = dti_group(), first = row * args.cols, units = args.cols / WIDTH;
    if (row >= args.rows)
        return;
    uint at_y = (args.x_offset + first) / WIDTH, at_dy = (args.dy_offset + first) / WIDTH;
    uint at_dx = (args.y_offset + first) / WIDTH;
    dti_row_sums sums = DTI_ROW_SUMS;
    DTI_EACH_UNIT(u, 0u, units) {
        if (spec0 == 1u)
            dti_row_add(sums, dy_at(at_dy + u));
        else
            dti_row_add(sums, y_at(at_y + u) * dy_at(at_dy + u));
    }
    float sum = dti_group_sum(dti_row_total(sums), units, 0u);
    DTI_EACH_UNIT(u, 0u, units) {
        vec4 value = y_at(at_y + u), grad = dy_at(at_dy + u);
        if (spec0 == 1u)
            grad -= dti_row_exp(value) * sum;
        else
            grad = value * (grad - sum);
        if (FOURS)
            dx4[at_dx + u] = grad;
        else
            dx[at_dx + u] = grad.x;
    }
}

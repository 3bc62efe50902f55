/* The elementwise functions that spec0 chooses from, and their gradients: map_body.h. */

float dti_unary(float x, float p0, float p1)
{
    switch (spec0) {
#define DTI_CASE(ID, name, slope) case DTI_U_##ID: return dti_m_map_##name(x, p0, p1);
        DTI_UNARY_LIST(DTI_CASE)
#undef DTI_CASE
    }
    return DTI_NAN;
}

float dti_unary_grad(float x, float dy, float p0, float p1)
{
    switch (spec0) {
#define DTI_CASE(ID, name, slope) case DTI_U_##ID: return dti_m_grad_##name(x, dy, p0, p1);
        DTI_UNARY_LIST(DTI_CASE)
#undef DTI_CASE
    }
    return DTI_NAN;
}

/* The reductions that spec0 (DTI_R_*) chooses from. */
float dti_fold_identity()
{
    return spec0 == DTI_R_SUM ? 0.0 : spec0 == DTI_R_MAX ? -DTI_INFINITY : DTI_INFINITY;
}

float dti_fold(float a, float b)
{
    return spec0 == DTI_R_SUM ? a + b : spec0 == DTI_R_MAX ? dti_max(a, b) : dti_min(a, b);
}

/* The elementary functions dti_m_*, one text for C and GLSL. */
#include "math.h"

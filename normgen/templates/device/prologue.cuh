#pragma once

#if !defined(NORMGEN_HOST)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#endif


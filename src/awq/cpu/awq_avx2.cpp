#include "awq/cpu/awq_columns_avx2.h"
#include "awq/cpu/awq_lanes.h"
#include "awq/cpu/awq_vector_avx2.h"

namespace qcore {

const AwqKernels kAwqAvx2{awq_load_group<AwqVector256>, awq_store_rows_either<AwqVector256>,
                          awq_store_columns<AwqColumns256>, awq_add_products<AwqVector256>,
                          awq_pack_panel<AwqVector256>};

}  // namespace qcore

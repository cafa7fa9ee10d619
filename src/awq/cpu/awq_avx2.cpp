#include "awq/cpu/awq_columns_avx2.h"
#include "awq/cpu/awq_lanes.h"

namespace qcore {

const AwqKernels kAwqAvx2{awq_load_group, awq_store_rows_either<AwqVector256>, awq_store_columns<AwqColumns256>,
                          awq_add_products<AwqVector256>, awq_pack_panel};

}  // namespace qcore

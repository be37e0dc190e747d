// A structure passed by value whose address is taken: functions read it in parameter space through generic addresses.
struct Table {
    unsigned long long scale;
    unsigned int rows[6];
};

__device__ __noinline__ unsigned int pick(const Table *table, unsigned int i)
{
    return table->rows[i % 6] * (unsigned int)table->scale;
}

extern "C" __global__ void picked(unsigned int first, unsigned int *out, const __grid_constant__ Table table)
{
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    const Table local = {table.scale + 1, {first, 1, 2, 3, 4, i}};
    out[i] = first + pick(&table, i) + pick(i % 2 ? &local : &table, i + 1);
}

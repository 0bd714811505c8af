/* A library that says it is NCCL; VERSION as ncclGetVersion tells it. */
int ncclGetVersion(int *version)
{
    *version = VERSION;
    return 0;
}

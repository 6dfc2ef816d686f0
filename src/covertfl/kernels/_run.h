/* The loops over jobs and over rows to predict, for the kernel of the including file. */

static void run_requests(const net *n, const rule *r, request *requests, idx num, int64_t *counter,
                         const kernel *k)
{
    workspace s;
    int fault = 0;
    idx number, position = 0, batch = 1;
    for (idx i = 0; i < num; i++)
        batch = most(batch, least(requests[i].job.batch_size, requests[i].job.num_rows));
    PyThreadState *state = PyEval_SaveThread();
    unsigned mode = flush_subnormals();
    if (!allocate(n, k, &s, batch, 1))
        fault = 3;
    number = 0;
    while (!fault && (number = claim(counter)) < num) {
        fault = find_fault(&n->shape, &requests[number].job, &position);
        if (!fault)
            k->run_job(n, &s, r, &requests[number].job);
    }
    release(n, &s);
    restore_mode(mode);
    PyEval_RestoreThread(state);
    if (fault)
        report_fault(&n->shape, &requests[least(number, num - 1)].job, fault, number, position);
}

/* Run the jobs of a list until none is left. */
static void run_list(const net *n, const rule *r, PyObject *jobs, const Py_buffer *counter, idx widest)
{
    idx num = PyList_Check(jobs) ? PyList_Size(jobs) : -1, read = 0;
    if (num < 0 || counter->len != (idx)sizeof(int64_t)) {
        PyErr_SetString(PyExc_ValueError, "jobs must be a list and counter one number");
        return;
    }
    request *requests = calloc((size_t)most(num, 1), sizeof(request));
    if (!requests) {
        PyErr_NoMemory();
        return;
    }
    while (read < num && read_request(PyList_GetItem(jobs, read), &n->shape, &requests[read], read))
        read++;
    if (read == num && num > 0)
        run_requests(n, r, requests, num, counter->buf, choose(widest));
    for (idx i = 0; i <= least(read, num - 1); i++)
        for (int v = 0; v < 5; v++)
            PyBuffer_Release(&requests[i].views[v]);
    free(requests);
}

/* Find the outputs of portions of the rows until none is left. */
static void predict_portions(const net *n, const Py_buffer *weights, const Py_buffer *features,
                             const Py_buffer *outputs, const Py_buffer *counter, idx widest)
{
    idx size = (idx)sizeof(float), num = features->len / (n->shape.inputs * size);
    if (weights->len != n->shape.num_weights * size ||
        features->len != num * n->shape.inputs * size ||
        outputs->len != num * n->shape.outputs * size || counter->len != (idx)sizeof(int64_t)) {
        PyErr_SetString(PyExc_ValueError, "arrays do not fit the model");
        return;
    }
    const kernel *k = choose(widest);
    workspace s;
    PyThreadState *state = PyEval_SaveThread();
    unsigned mode = flush_subnormals();
    int fits = allocate(n, k, &s, PORTION, 0);
    if (fits) {
        k->repack(n, &s, weights->buf, s.weights, 0);
        for (idx from; (from = claim(counter->buf) * PORTION) < num;)
            k->predict_rows(n, &s, features->buf, from, least(PORTION, num - from), outputs->buf);
    }
    release(n, &s);
    restore_mode(mode);
    PyEval_RestoreThread(state);
    if (!fits)
        PyErr_NoMemory();
}

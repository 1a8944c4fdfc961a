// The functions of activations. Each has two, `name` and `name_derivative`, of x and the two constants of its
// attributes, which most do not use. NaN is propagated, so that a diverged run is noticed.

__device__ __forceinline__ float elu(float x, float alpha, float) { return x > 0.0f ? x : alpha * expm1f(x); }
__device__ __forceinline__ float elu_derivative(float x, float alpha, float) {
    return x > 0.0f ? 1.0f : alpha * expf(x);
}

// The cumulative distribution function of the standard normal distribution, by erfc to be exact in the tails
// too.
__device__ __forceinline__ float distribution(float x) { return 0.5f * erfcf(-0.70710678f * x); }

__device__ __forceinline__ float gelu(float x, float, float) { return x * distribution(x); }
__device__ __forceinline__ float gelu_derivative(float x, float, float) {
    float density = 0.39894228f * expf(-0.5f * x * x);
    return distribution(x) + x * density;
}

// Three linear pieces: the middle one has a width of 1 / slope and begins at -shift.
__device__ __forceinline__ float hard_sigmoid(float x, float width, float shift) {
    float y = x + shift;
    y = y < 0.0f ? 0.0f : y;
    return (y > width ? width : y) / width;
}
__device__ __forceinline__ float hard_sigmoid_derivative(float x, float width, float shift) {
    return x <= -shift || x >= width - shift ? 0.0f : x != x ? x : 1.0f / width;
}

__device__ __forceinline__ float hard_swish(float x, float, float) {
    return x <= -3.0f ? 0.0f : x * hard_sigmoid(x, 6.0f, 3.0f);
}
__device__ __forceinline__ float hard_swish_derivative(float x, float, float) {
    return x <= -3.0f ? 0.0f : x >= 3.0f ? 1.0f : x / 3.0f + 0.5f;
}

__device__ __forceinline__ float leaky_relu_derivative(float x, float alpha, float) {
    return x > 0.0f ? 1.0f : x != x ? x : alpha;
}
__device__ __forceinline__ float leaky_relu(float x, float alpha, float) {
    return x > 0.0f ? x : alpha * x;
}

// Computed from exp(-|x|), which cannot overflow.
__device__ __forceinline__ float logistic(float x) {
    float e = expf(-fabsf(x)), s = 1.0f / (1.0f + e);
    return x < 0.0f ? e * s : s;
}
__device__ __forceinline__ float sigmoid(float x, float, float) { return logistic(x); }
__device__ __forceinline__ float sigmoid_derivative(float x, float, float) {
    float e = expf(-fabsf(x)), s = 1.0f / (1.0f + e);
    return e * s * s;
}

__device__ __forceinline__ float silu(float x, float, float) { return x * logistic(x); }
__device__ __forceinline__ float silu_derivative(float x, float, float) {
    return logistic(x) + x * sigmoid_derivative(x, 0.0f, 0.0f);
}

__device__ __forceinline__ float softplus(float x, float, float) {
    return (x < 0.0f ? 0.0f : x) + log1pf(expf(-fabsf(x)));
}
__device__ __forceinline__ float softplus_derivative(float x, float, float) { return logistic(x); }

__device__ __forceinline__ float tanh(float x, float, float) { return tanhf(x); }
__device__ __forceinline__ float tanh_derivative(float x, float, float) {
    float e = expf(-2.0f * fabsf(x)), s = 1.0f / (1.0f + e);
    return 4.0f * e * s * s;
}

// t = tanh(ln(1 + exp(x))) and the root of 1 - t * t, from e = exp(-|x|):
//   x >= 0   t = (1 + 2e) / (1 + 2e + 2e^2)   root = 2e (1 + e) / (1 + 2e + 2e^2)
//   x < 0    t = (e^2 + 2e) / (e^2 + 2e + 2)  root = 2 (1 + e) / (e^2 + 2e + 2)
__device__ __forceinline__ void tanh_of_softplus(float x, float &t, float &root) {
    float e = expf(-fabsf(x)), above = 1.0f + 2.0f * e, below = e * e + 2.0f * e;
    float denominator = x < 0.0f ? below + 2.0f : above + 2.0f * e * e;
    t = (x < 0.0f ? below : above) / denominator;
    root = 2.0f * (1.0f + e) * (x < 0.0f ? 1.0f : e) / denominator;
}
__device__ __forceinline__ float mish(float x, float, float) {
    float t, root;
    tanh_of_softplus(x, t, root);
    return x * t;
}
__device__ __forceinline__ float mish_derivative(float x, float, float) {
    float t, root;
    tanh_of_softplus(x, t, root);
    return t + x * logistic(x) * (root * root);
}

// A ReLU with a ceiling, for the kernels that it is fused into.
__device__ __forceinline__ float clipped_relu(float x, float ceiling, float) {
    float y = x <= 0.0f ? 0.0f : x;
    return y >= ceiling ? ceiling : y;
}
__device__ __forceinline__ float clipped_relu_derivative(float x, float ceiling, float) {
    return x <= 0.0f || x >= ceiling ? 0.0f : 1.0f;
}

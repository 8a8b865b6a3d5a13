#!/bin/sh
# Builds an MXNet wheel on a node, for [bootstrap] mxnet = "PATH.whl". It takes an hour or more and 10 GB of disk.
#
#     cluster cp build-mxnet.sh node-0:
#     cluster exec --node node-0 -- sh build-mxnet.sh v1.7.x
#     cluster cp node-0:'mxnet-*.whl' .
#
# The arguments are a branch or tag, and options of make that replace those below: CUDA_ARCH="-gencode ...". It follows
# https://github.com/apache/mxnet/blob/v1.7.x/docs/static_site/src/pages/get_started/build_from_source.md. Before:
#
#     sudo apt-get install -y git make g++ python3-pip libopencv-dev libopenblas-dev liblapack-dev \
#         libcurl4-openssl-dev libssl-dev
#     python3 -m pip install --user "setuptools>=70.1,<81"
#
# All nodes need the same libraries: name them in [bootstrap] setup, too.
set -eu
ref=${1:-v1.7.x}
[ $# = 0 ] || shift
python=${PYTHON:-python3}
repository=${REPOSITORY:-https://github.com/apache/mxnet.git}
cuda=${CUDA:-/usr/local/cuda}
tag=1_cpu
if [ -x "$cuda/bin/nvcc" ]; then
    set -- USE_CUDA=1 USE_CUDNN=1 USE_CUDA_PATH="$cuda" "$@"
    tag=1_cu$("$cuda/bin/nvcc" --version | sed -n 's/.*release \([0-9]*\)\.\([0-9]*\).*/\1\2/p')
fi

[ -d mxnet-source ] || git clone --quiet --recursive --branch "$ref" "$repository" mxnet-source
cd mxnet-source
# USE_S3: reads s3:// itself. USE_DIST_KVSTORE: has the parameter server. .DELETE_ON_ERROR: can be continued.
make --eval=.DELETE_ON_ERROR: -j"$(nproc)" USE_DIST_KVSTORE=1 USE_S3=1 USE_OPENCV=1 USE_BLAS=openblas "$@"

# setup.py leaves out launch.py with its tracker, and puts the library where `import mxnet` does not look.
cd python
sed -i '/data_files=/d' setup.py
cat >setup.cfg <<CONFIG
[options.package_data]
mxnet = libmxnet.so
[bdist_wheel]
build_number = $tag
plat_name = linux_$(uname -m)
CONFIG
mkdir -p mxnet/tools
touch mxnet/tools/__init__.py
cp ../tools/*.py mxnet/tools/
cp -r ../3rdparty/dmlc-core/tracker/dmlc_tracker .
cp ../lib/libmxnet.so mxnet/
"$python" setup.py --quiet bdist_wheel -d ../..

"""Files: atomic writes, and readers that refuse bad files with one sentence.

disk.py has bytes, text, JSON and the configuration of output folders; arrays.py NPY and NPZ;
images.py photographs and labels; videos.py frames of videos; maps.py depth and disparity with their
units; exr.py OpenEXR; weights.py shipped weights; lengths.py lengths as people type them;
anchor_tables.py tables of anchors.
"""

from scalefield.io.arrays import NUMPY_ERRORS, read_npy, read_npz, write_npz
from scalefield.io.disk import (
    as_json,
    config_differences,
    continues,
    files_below,
    read_bytes,
    read_json,
    read_text,
    refuse_address,
    remove_temporary,
    spare_inputs,
    write_atomic,
    write_folder,
    write_json,
)
from scalefield.io.images import (
    IMAGE_ERRORS,
    IMAGE_SUFFIXES,
    ORIENTATION,
    exif_orientation,
    image_bytes,
    open_image,
    read_image,
    read_labels,
    rgb,
    rgb_pixels,
    write_image,
)
from scalefield.io.maps import (
    MAP_SUFFIXES,
    UNITS_TAG,
    read_depth_png,
    read_map,
    read_png16,
    write_depth_png,
    write_map,
)
